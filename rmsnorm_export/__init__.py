"""Every RMSNorm of an ONNX model becomes one node, with a proof per site::

    import rmsnorm_export as rx
    result = rx.optimize("model.onnx", target="portable")
    result.save("optimized.onnx")

Names are imported when they are first used, so that ``import rmsnorm_export`` costs nothing.
"""

# isort: skip_file
# (ruff would write a statement for each name)
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmsnorm_export.api import (
        build_engine as build_engine,
        export as export,
        inspect as inspect,
        optimize as optimize,
        verify as verify,
    )
    from rmsnorm_export.benchmark.measure import bench as bench
    from rmsnorm_export.benchmark.result import Benchmark as Benchmark
    from rmsnorm_export.compare.result import Verification as Verification
    from rmsnorm_export.deploy.package import package_model as package_model
    from rmsnorm_export.deploy.repository import Packaged as Packaged
    from rmsnorm_export.deploy.result import Deployment as Deployment
    from rmsnorm_export.deploy.run import run_pipeline as run_pipeline
    from rmsnorm_export.diagnosis import doctor as doctor
    from rmsnorm_export.errors import (
        BackendMissingError as BackendMissingError,
        Error as Error,
        InputError as InputError,
        RequirementError as RequirementError,
        UsageError as UsageError,
        VerificationError as VerificationError,
    )
    from rmsnorm_export.recognize.refusal import Refusal as Refusal
    from rmsnorm_export.rewrite.result import Report as Report, Result as Result, Site as Site
    from rmsnorm_export.tensorrt import plugin as plugin
    from rmsnorm_export.tensorrt.engine.result import EngineResult as EngineResult
    from rmsnorm_export.tensorrt.plugin.libraries import session_options as session_options
    from rmsnorm_export.torch.export.convert import ExportResult as ExportResult
    from rmsnorm_export.decoder.export import export_generation as export_generation

__version__ = "0.1.0"

_HOMES = {
    "api": "build_engine export inspect optimize verify",
    "benchmark.measure": "bench",
    "benchmark.result": "Benchmark",
    "compare.result": "Verification",
    "deploy.package": "package_model",
    "deploy.repository": "Packaged",
    "deploy.result": "Deployment",
    "deploy.run": "run_pipeline",
    "diagnosis": "doctor",
    "errors": "BackendMissingError Error InputError RequirementError UsageError VerificationError",
    "recognize.refusal": "Refusal",
    "rewrite.result": "Report Result Site",
    "tensorrt": "plugin",
    "tensorrt.engine.result": "EngineResult",
    "tensorrt.plugin.libraries": "session_options",
    "torch.export.convert": "ExportResult",
    "decoder.export": "export_generation",
}
"""Module -> the public names that it holds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    if name == "plugin":
        importlib.import_module(f"{module.__name__}.plugin")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

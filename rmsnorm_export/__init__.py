"""Every RMSNorm of an ONNX model becomes one node, with a proof per site.

    import rmsnorm_export as rx
    result = rx.optimize("model.onnx", target="portable")
    result.save("optimized.onnx")

Names are imported when they are first used, so that ``import rmsnorm_export`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.benchmark.result import Benchmark
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.compare.verify import verify
    from rmsnorm_export.deploy.package import package_model
    from rmsnorm_export.deploy.packaged import Packaged
    from rmsnorm_export.deploy.result import Deployment
    from rmsnorm_export.deploy.run import run_pipeline
    from rmsnorm_export.diagnosis import doctor
    from rmsnorm_export.errors import (
        BackendMissingError,
        Error,
        InputError,
        RequirementError,
        UsageError,
        VerificationError,
    )
    from rmsnorm_export.recognize.refusal import Refusal
    from rmsnorm_export.rewrite.optimize import inspect, optimize
    from rmsnorm_export.rewrite.result import Report, Result, Site
    from rmsnorm_export.tensorrt import plugin
    from rmsnorm_export.tensorrt.engine.build import build_engine
    from rmsnorm_export.tensorrt.engine.result import EngineResult
    from rmsnorm_export.tensorrt.plugin.libraries import session_options
    from rmsnorm_export.torch.export.export import ExportResult, export
    from rmsnorm_export.torch.generation.export import export_generation

__version__ = "0.1.0"

__all__ = [
    "BackendMissingError",
    "Benchmark",
    "Deployment",
    "EngineResult",
    "Error",
    "ExportResult",
    "InputError",
    "Packaged",
    "Refusal",
    "Report",
    "RequirementError",
    "Result",
    "Site",
    "UsageError",
    "Verification",
    "VerificationError",
    "bench",
    "build_engine",
    "doctor",
    "export",
    "export_generation",
    "inspect",
    "optimize",
    "package_model",
    "plugin",
    "run_pipeline",
    "session_options",
    "verify",
]

_HOMES = {
    "benchmark.measure": "bench",
    "benchmark.result": "Benchmark",
    "compare.result": "Verification",
    "compare.verify": "verify",
    "deploy.package": "package_model",
    "deploy.packaged": "Packaged",
    "deploy.result": "Deployment",
    "deploy.run": "run_pipeline",
    "diagnosis": "doctor",
    "errors": "BackendMissingError Error InputError RequirementError UsageError VerificationError",
    "recognize.refusal": "Refusal",
    "rewrite.optimize": "inspect optimize",
    "rewrite.result": "Report Result Site",
    "tensorrt.engine.build": "build_engine",
    "tensorrt.engine.result": "EngineResult",
    "tensorrt.plugin.libraries": "session_options",
    "torch.export.export": "ExportResult export",
    "torch.generation.export": "export_generation",
}
"""Module -> the public names that it holds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "plugin":
        return importlib.import_module(f"{__name__}.tensorrt.plugin")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

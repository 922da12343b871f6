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
    from rmsnorm_export import plugin
    from rmsnorm_export._verify import verify
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.benchmark.result import Benchmark
    from rmsnorm_export.deploy.kserve import KServe
    from rmsnorm_export.deploy.package import package_model
    from rmsnorm_export.deploy.result import Packaged
    from rmsnorm_export.engine.build import build_engine
    from rmsnorm_export.engine.check import check_engine
    from rmsnorm_export.engine.result import EngineCheck, EngineRecord, EngineResult
    from rmsnorm_export.errors import (
        BackendMissingError,
        Error,
        ExitCode,
        InputError,
        RequirementError,
        UsageError,
        VerificationError,
    )
    from rmsnorm_export.op.spec import NormSpec
    from rmsnorm_export.pipeline.result import Deployment
    from rmsnorm_export.pipeline.run import run_pipeline
    from rmsnorm_export.proof.compare import Difference, Verification
    from rmsnorm_export.report.result import Proof, Refusal, Report, Site
    from rmsnorm_export.rewrite.optimize import Result, inspect, optimize
    from rmsnorm_export.rewrite.save import SaveResult
    from rmsnorm_export.torch.export import ExportResult, export

__version__ = "0.1.0"

__all__ = [
    "BackendMissingError",
    "Benchmark",
    "Deployment",
    "Difference",
    "EngineCheck",
    "EngineRecord",
    "EngineResult",
    "Error",
    "ExitCode",
    "ExportResult",
    "InputError",
    "KServe",
    "NormSpec",
    "Packaged",
    "Proof",
    "Refusal",
    "Report",
    "RequirementError",
    "Result",
    "SaveResult",
    "Site",
    "UsageError",
    "Verification",
    "VerificationError",
    "bench",
    "build_engine",
    "check_engine",
    "export",
    "inspect",
    "optimize",
    "package_model",
    "plugin",
    "run_pipeline",
    "verify",
]

_HOME = {
    "Benchmark": "benchmark.result",
    "bench": "benchmark.measure",
    "KServe": "deploy.kserve",
    "Packaged": "deploy.result",
    "package_model": "deploy.package",
    "Deployment": "pipeline.result",
    "run_pipeline": "pipeline.run",
    "BackendMissingError": "errors",
    "Error": "errors",
    "ExitCode": "errors",
    "InputError": "errors",
    "RequirementError": "errors",
    "UsageError": "errors",
    "VerificationError": "errors",
    "NormSpec": "op.spec",
    "Proof": "report.result",
    "Refusal": "report.result",
    "Report": "report.result",
    "Site": "report.result",
    "Result": "rewrite.optimize",
    "inspect": "rewrite.optimize",
    "optimize": "rewrite.optimize",
    "SaveResult": "rewrite.save",
    "EngineCheck": "engine.result",
    "EngineRecord": "engine.result",
    "EngineResult": "engine.result",
    "build_engine": "engine.build",
    "check_engine": "engine.check",
    "ExportResult": "torch.export",
    "export": "torch.export",
    "Difference": "proof.compare",
    "Verification": "proof.compare",
    "verify": "_verify",
}


_MODULES = frozenset({"plugin"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

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
    from rmsnorm_export.benchmark.folder import bench_folder
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.benchmark.result import Benchmark
    from rmsnorm_export.compare.result import Difference, Verification
    from rmsnorm_export.compare.verify import verify
    from rmsnorm_export.diagnosis import Diagnosis, doctor
    from rmsnorm_export.errors import (
        BackendMissingError,
        Error,
        ExitCode,
        InputError,
        RequirementError,
        UsageError,
        VerificationError,
    )
    from rmsnorm_export.graph.bundle import Components
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.op.spec import NormSpec
    from rmsnorm_export.pipeline.result import Deployment
    from rmsnorm_export.pipeline.run import run_pipeline
    from rmsnorm_export.proof.result import Proof
    from rmsnorm_export.recognize.refusal import Refusal
    from rmsnorm_export.rewrite.folder import FolderResult, inspect_folder, optimize_folder
    from rmsnorm_export.rewrite.optimize import Result, expand, inspect, optimize
    from rmsnorm_export.rewrite.result import GenerationExport, Report, Site
    from rmsnorm_export.serving.folder import package_decoder
    from rmsnorm_export.serving.kserve import KServe
    from rmsnorm_export.serving.package import package_model
    from rmsnorm_export.serving.result import Packaged
    from rmsnorm_export.system.provenance import ReportCheck, check_report
    from rmsnorm_export.tensorrt import plugin
    from rmsnorm_export.tensorrt.engine.build import build_engine
    from rmsnorm_export.tensorrt.engine.check import check_engine
    from rmsnorm_export.tensorrt.engine.result import EngineCheck, EngineRecord, EngineResult
    from rmsnorm_export.tensorrt.plugin.native import session_options
    from rmsnorm_export.torch.export.export import ExportResult, export
    from rmsnorm_export.torch.generation.export import export_generation

__version__ = "0.1.0"

__all__ = [
    "BackendMissingError",
    "Benchmark",
    "Components",
    "Deployment",
    "Diagnosis",
    "Difference",
    "EngineCheck",
    "EngineRecord",
    "EngineResult",
    "Error",
    "ExitCode",
    "ExportResult",
    "FolderResult",
    "GenerationExport",
    "InputError",
    "KServe",
    "NormSpec",
    "Packaged",
    "Proof",
    "Refusal",
    "Report",
    "ReportCheck",
    "RequirementError",
    "Result",
    "SaveResult",
    "Site",
    "UsageError",
    "Verification",
    "VerificationError",
    "bench",
    "bench_folder",
    "build_engine",
    "check_engine",
    "check_report",
    "doctor",
    "expand",
    "export",
    "export_generation",
    "inspect",
    "inspect_folder",
    "optimize",
    "optimize_folder",
    "package_decoder",
    "package_model",
    "plugin",
    "run_pipeline",
    "session_options",
    "verify",
]

_HOMES = {
    "benchmark.folder": "bench_folder",
    "benchmark.measure": "bench",
    "benchmark.result": "Benchmark",
    "compare.result": "Difference Verification",
    "compare.verify": "verify",
    "diagnosis": "Diagnosis doctor",
    "errors": "BackendMissingError Error ExitCode InputError RequirementError UsageError"
    " VerificationError",
    "graph.bundle": "Components",
    "graph.save": "SaveResult",
    "op.spec": "NormSpec",
    "pipeline.result": "Deployment",
    "pipeline.run": "run_pipeline",
    "proof.result": "Proof",
    "recognize.refusal": "Refusal",
    "rewrite.folder": "FolderResult inspect_folder optimize_folder",
    "rewrite.optimize": "Result expand inspect optimize",
    "rewrite.result": "GenerationExport Report Site",
    "serving.folder": "package_decoder",
    "serving.kserve": "KServe",
    "serving.package": "package_model",
    "serving.result": "Packaged",
    "system.provenance": "ReportCheck check_report",
    "tensorrt.engine.build": "build_engine",
    "tensorrt.engine.check": "check_engine",
    "tensorrt.engine.result": "EngineCheck EngineRecord EngineResult",
    "tensorrt.plugin.native": "session_options",
    "torch.export.export": "ExportResult export",
    "torch.generation.export": "export_generation",
}
"""Module -> the public names that it holds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = {"plugin": "tensorrt.plugin"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

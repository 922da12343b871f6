"""A PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.save import SaveResult, check_output
from rmsnorm_export.graph.wellformed import NEWEST_OPSET
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.options import takes
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.result import Report, Result
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.torch.export.trace import EXPORTING, OLDEST_OPSET, TIDYING, trace
from rmsnorm_export.torch_options import ExportOptions

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

RECOGNISING, WRITING = "recognising the norms", "writing"
STAGES = (EXPORTING, TIDYING, RECOGNISING, WRITING)
"""What ``progress`` is told, in order."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class ExportResult(Shown):
    """Outcome of `export`.

    Attributes:
        path: the file that was written.
        model: what is in it.
        report: every norm: its node, its module's path, its class of rewrite.
        saved: size, external data files and notes of the file.
        log: what PyTorch's exporter printed, logged and warned of.
        seconds: wall-clock time of it all.
    """

    path: Path
    model: ir.Model
    report: Report
    saved: SaveResult
    log: str
    seconds: float

    def _shown(self) -> Report:
        return self.report


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """A module as an optimized ONNX model in memory; its weights are still the module's.

    Attributes:
        result: the model, its report, and how to save it.
        log: as in `ExportResult`.
    """

    result: Result
    log: str


@takes(ExportOptions)
def export(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    options: ExportOptions,
) -> ExportResult:
    """Export a module to ONNX, with every RMSNorm as one node named after its module.

    The graph is that of ``torch.onnx.export(dynamo=True)``, in inference mode. Norms may be
    ``torch.nn.RMSNorm``, the operators of ``torch.ops.rmsnorm_export`` or written by hand; each
    keeps the rounding order that it has in PyTorch.

    Args:
        module: what to export, or a program of ``torch.export.export``; left as it is.
        args: example inputs, positional; ignored for a program.
        path: the .onnx file to make, whole or not at all. Weights over 2 GiB go to ``PATH.data``.

    Returns:
        What was written, with the report.

    Raises:
        UsageError: an argument that cannot be used: its name and what to change are in the error.
        InputError: the module cannot be exported, or the place cannot be written.
        BackendMissingError: PyTorch or onnxscript is not installed.
    """
    start = time.perf_counter()
    check_output(path, force=options.force)
    converted = _convert(module, args, options)
    _teller(options.progress or None)(WRITING)
    saved = converted.result.save(path, weights=options.weights, force=options.force)
    return ExportResult(
        path=saved.path,
        model=converted.result.model,
        report=converted.result.report,
        saved=saved,
        log=converted.log,
        seconds=time.perf_counter() - start,
    )


@takes(ExportOptions)
def convert(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
) -> Converted:
    """As `export`, without writing a file."""
    return _convert(module, args, options)


def _convert(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
) -> Converted:
    tell = _teller(options.progress or None)
    opset = _opset(options)
    model, log = trace(module, args, dataclasses.replace(options, opset=opset), tell)
    tell(RECOGNISING)
    result = optimize(
        model,
        target=options.form,
        runtime=options.runtime,
        numerics=options.numerics,
        prove=options.prove,
        seed=options.seed,
        kernels=options.kernels,
        progress=options.progress,
        drawings=options.drawings,
        fusions=options.fusions,
    )
    source = f"PyTorch module {type(module).__module__}.{type(module).__qualname__}"
    report = dataclasses.replace(result.report, source=source)
    return Converted(dataclasses.replace(result, report=report), log)


def _opset(options: ExportOptions) -> int | None:
    opset, target, row = options.opset, options.form, options.consumer
    needed = TARGETS[target].min_opset
    if opset is None:
        # PyTorch's choice may be newer than an old runtime.
        return needed or (OLDEST_OPSET if row and row.opset else None)
    oldest = max(OLDEST_OPSET, needed)
    if type(opset) is not int or not oldest <= opset <= NEWEST_OPSET:
        raise UsageError(
            f"The opset is out of the range of the target {target}.",
            found=f"opset {opset!r}",
            fix=f"use {oldest} to {NEWEST_OPSET}, or omit it",
        )
    return opset


def _teller(progress: Progress | None) -> Callable[[str], None]:
    """What to call at the beginning of each stage."""

    def tell(stage: str) -> None:
        if progress is not None:
            progress(stage, STAGES.index(stage), len(STAGES))

    return tell

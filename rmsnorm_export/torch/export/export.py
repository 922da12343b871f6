"""A PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.save import SaveResult, WeightsPolicy, check_output
from rmsnorm_export.graph.wellformed import NEWEST_OPSET
from rmsnorm_export.lower.targets import TARGETS, Target, check_choices
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.rewrite.optimize import Result, optimize
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.torch.export.chatter import DECOMPOSING, TRACING, TRANSLATING
from rmsnorm_export.torch.export.trace import OLDEST_OPSET, TIDYING, trace
from rmsnorm_export.torch.export.weights import WeightValues

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

RECOGNISING, WRITING = "recognising the norms", "writing"
STAGES = (TRACING, DECOMPOSING, TRANSLATING, TIDYING, RECOGNISING, WRITING)
"""What ``progress`` is told, in order."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ExportResult:
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """A module as an optimized ONNX model in memory; its weights are still the module's.

    Attributes:
        result: the model, its report, and how to save it.
        log: as in `ExportResult`.
    """

    result: Result
    log: str


def export(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: Target = "portable",
    numerics: Numerics = "reordered",
    opset: int | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    prove: bool = False,
    seed: int = 0,
    state: WeightValues | None = None,
    weights: WeightsPolicy = "auto",
    force: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a module to ONNX, with every RMSNorm as one node named after its module.

    The graph is that of ``torch.onnx.export(dynamo=True)``, in inference mode. Norms may be
    ``torch.nn.RMSNorm``, the operators of ``torch.ops.rmsnorm_export`` or written by hand; each
    keeps the rounding order that it has in PyTorch.

    Args:
        module: what to export, or a program of ``torch.export.export``; left as it is.
        args: example inputs, positional; ignored for a program.
        path: the .onnx file to make, whole or not at all. Weights over 2 GiB go to ``PATH.data``.
        kwargs: example inputs by name.
        target, numerics: as for `rmsnorm_export.optimize`.
        opset: 18 to 24; by default PyTorch's own choice, and 23 for the target ``onnx``.
        dynamic_shapes: as for ``torch.export.export``; a string names a dynamic dimension.
        input_names, output_names: of the graph; by default the names of ``forward``'s parameters,
            and the keys of what it returns, or ``output``, ``output_1``.
        prove: as for `rmsnorm_export.optimize`.
        seed: of the random inputs of the proofs.
        state: values of weights that are on the meta device: a mapping, or a function from a
            weight's name to its tensor, called when the weight is written.
        weights: ``auto``, or ``embed`` to refuse an external data file.
        force: replace an existing file.
        progress: called at the beginning of each stage with its name, the stages that are over
            and the stages in all; and while sites are proved, as by `rmsnorm_export.optimize`.

    Returns:
        What was written, with the report.

    Raises:
        UsageError: an argument that cannot be used: its name and what to change are in the error.
        InputError: the module cannot be exported, or the place cannot be written.
        BackendMissingError: PyTorch or onnxscript is not installed.
    """
    start = time.perf_counter()
    check_output(path, force=force)
    converted = convert(
        module,
        args,
        kwargs=kwargs,
        target=target,
        numerics=numerics,
        opset=opset,
        dynamic_shapes=dynamic_shapes,
        input_names=input_names,
        output_names=output_names,
        prove=prove,
        seed=seed,
        state=state,
        progress=progress,
    )
    _teller(progress)(WRITING)
    saved = converted.result.save(path, weights=weights, force=force)
    return ExportResult(
        path=saved.path,
        model=converted.result.model,
        report=converted.result.report,
        saved=saved,
        log=converted.log,
        seconds=time.perf_counter() - start,
    )


def convert(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: Target = "portable",
    numerics: Numerics = "reordered",
    opset: int | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    prove: bool = False,
    seed: int = 0,
    state: WeightValues | None = None,
    progress: Progress | None = None,
    drawings: bool = False,
) -> Converted:
    """As `export`, without writing a file; ``drawings`` as for `rmsnorm_export.optimize`."""
    check_choices(target, numerics)
    tell = _teller(progress)
    traced = trace(
        module,
        args,
        kwargs,
        opset=_opset(opset, target),
        dynamic_shapes=dynamic_shapes,
        input_names=input_names,
        output_names=output_names,
        state=state,
        tell=tell,
    )
    tell(RECOGNISING)
    result = optimize(
        traced.model,
        target=target,
        numerics=numerics,
        prove=prove,
        seed=seed,
        progress=progress,
        drawings=drawings,
    )
    source = f"PyTorch module {type(module).__module__}.{type(module).__qualname__}"
    report = dataclasses.replace(result.report, source=source)
    return Converted(dataclasses.replace(result, report=report), traced.log)


def _opset(opset: int | None, target: Target) -> int | None:
    needed = TARGETS[target].min_opset
    if opset is None:
        return needed or None
    oldest = max(OLDEST_OPSET, needed)
    if not oldest <= opset <= NEWEST_OPSET:
        raise UsageError(
            f"The opset is out of the range of the target {target}.",
            found=f"opset {opset}",
            fix=f"use {oldest} to {NEWEST_OPSET}, or leave it away",
        )
    return opset


def _teller(progress: Progress | None) -> Callable[[str], None]:
    """What to call at the beginning of each stage."""

    def tell(stage: str) -> None:
        if progress is not None:
            progress(stage, STAGES.index(stage), len(STAGES))

    return tell

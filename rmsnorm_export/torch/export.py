"""A PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.report.result import Numerics, Report, Target
from rmsnorm_export.rewrite.optimize import Progress, Result, optimize
from rmsnorm_export.rewrite.save import SaveResult, WeightsPolicy, check_output
from rmsnorm_export.rewrite.wellformed import NEWEST_OPSET

try:
    import onnxscript as _onnxscript  # noqa: F401 (torch.onnx needs it)
    import torch
except ModuleNotFoundError as error:
    raise BackendMissingError(
        "Exporting from PyTorch needs packages that are not installed.",
        found=f"no package {error.name}",
        fix='pip install "rmsnorm-export[torch]"',
    ) from error

from rmsnorm_export.torch import export_names, export_weights
from rmsnorm_export.torch.export_chatter import (
    DECOMPOSING,
    TRACING,
    TRANSLATING,
    Chatter,
    collected,
)
from rmsnorm_export.torch.export_clean import tidy
from rmsnorm_export.torch.export_failure import explain
from rmsnorm_export.torch.export_types import check_types
from rmsnorm_export.torch.export_weights import State
from rmsnorm_export.torch.translate import translation_table

if TYPE_CHECKING:
    import onnx_ir as ir

OLDEST_OPSET = 18
"""PyTorch's translations are written for opset 18; below it they would be converted down."""

_ONNX_TARGET_OPSET = 23
TIDYING, RECOGNISING, WRITING = "tidying the graph", "recognising the norms", "writing"
STAGES = (TRACING, DECOMPOSING, TRANSLATING, TIDYING, RECOGNISING, WRITING)
"""What ``progress`` is told, in order."""

_LOG = logging.getLogger("rmsnorm_export.torch")


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
    state: State | None = None,
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
    state: State | None = None,
    progress: Progress | None = None,
    drawings: bool = False,
) -> Converted:
    """As `export`, without writing a file; ``drawings`` as for `rmsnorm_export.optimize`."""
    positional, named = _arguments(module, args, kwargs)
    _check_choices(target, numerics)
    version = _opset(opset, target)
    export_names.check_axes(dynamic_shapes, positional, named)
    tell = _teller(progress)
    absent = export_weights.missing(module) if isinstance(module, torch.nn.Module) else {}
    export_weights.check_state(absent, state)
    with _kept(tell) as traced:
        try:
            with inference(module), _stand_ins(module, absent):
                program = torch.onnx.export(
                    module,
                    positional,
                    kwargs=named or None,
                    dynamo=True,
                    opset_version=version,
                    dynamic_shapes=dynamic_shapes,
                    custom_translation_table=translation_table(),
                    optimize=False,
                )
        except Exception as error:
            raise explain(error, module, positional, named) from error
    assert program is not None
    model = program.model
    tell(TIDYING)
    export_names.check_dynamic(model, dynamic_shapes)
    export_names.check_names(input_names, "input_names", model.graph.inputs)
    export_names.check_names(output_names, "output_names", model.graph.outputs)
    with _kept() as tidied:
        export_weights.attach(model, absent, state)
        tidy(model)
        check_types(model)
        export_names.rename_inputs(model, input_names or ())
        names = output_names or export_names.output_names(program.exported_program, model)
        export_names.rename_outputs(model, names)
    del program
    tell(RECOGNISING)
    result = optimize(
        model,
        target=target,
        numerics=numerics,
        prove=prove,
        seed=seed,
        progress=progress,
        drawings=drawings,
    )
    source = f"PyTorch module {type(module).__module__}.{type(module).__qualname__}"
    report = dataclasses.replace(result.report, source=source)
    return Converted(
        dataclasses.replace(result, report=report), "\n".join([*traced.lines, *tidied.lines])
    )


def _arguments(
    module: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(module, torch.jit.ScriptModule) or not isinstance(
        module, torch.nn.Module | torch.export.ExportedProgram
    ):
        raise UsageError(
            "Only a torch.nn.Module or a torch.export.ExportedProgram can be exported.",
            found=f"{type(module).__module__}.{type(module).__qualname__}",
            fix="put the computation into the forward of a torch.nn.Module",
        )
    if not isinstance(args, tuple | list):
        raise UsageError(
            "args is the sequence of the module's positional inputs.",
            found=type(args).__name__,
            fix="pass a tuple, e.g. (input_ids,)",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(
            "kwargs is a mapping of input names to values.",
            found=type(kwargs).__name__,
            fix='pass a dictionary, e.g. {"input_ids": input_ids}',
        )
    return tuple(args), dict(kwargs or {})


def _check_choices(target: str, numerics: str) -> None:
    for name, value, known in (
        ("target", target, get_args(Target)),
        ("numerics", numerics, get_args(Numerics)),
    ):
        if value not in known:
            raise UsageError(
                f"There is no {name} of this name.",
                found=repr(value),
                fix=f"use one of {', '.join(known)}",
            )


def _opset(opset: int | None, target: str) -> int | None:
    if opset is None:
        return _ONNX_TARGET_OPSET if target == "onnx" else None
    oldest = _ONNX_TARGET_OPSET if target == "onnx" else OLDEST_OPSET
    if not oldest <= opset <= NEWEST_OPSET:
        raise UsageError(
            f"The opset is out of the range of the target {target}.",
            found=f"opset {opset}",
            fix=f"use {oldest} to {NEWEST_OPSET}, or leave it away",
        )
    return opset


@contextlib.contextmanager
def inference(module: object) -> Iterator[None]:
    """In evaluation mode and without gradients; every submodule's mode is restored."""
    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    modes = [child.training for child in modules]
    for child in modules:
        child.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in zip(modules, modes, strict=True):
            child.training = mode


def _stand_ins(
    module: torch.nn.Module | torch.export.ExportedProgram, absent: Mapping[str, torch.Tensor]
) -> contextlib.AbstractContextManager[None]:
    if isinstance(module, torch.nn.Module):
        return export_weights.stand_ins(module, absent)
    return contextlib.nullcontext()


def _teller(progress: Progress | None) -> Callable[[str], None]:
    """What to call at the beginning of each stage."""

    def tell(stage: str) -> None:
        if progress is not None:
            progress(stage, STAGES.index(stage), len(STAGES))

    return tell


@contextlib.contextmanager
def _kept(tell: Callable[[str], None] | None = None) -> Iterator[Chatter]:
    """What the exporter says in the block is logged at its end, for -v."""
    chatter = Chatter()
    try:
        with collected(chatter, tell):
            yield chatter
    finally:
        for line in chatter.lines:
            _LOG.info("%s", line)

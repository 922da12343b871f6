"""A PyTorch module as ONNX: `torch.onnx.export`, tidied up, then every RMSNorm one node."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.save import SaveResult
from rmsnorm_export.graph.wellformed import NEWEST_OPSET
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.options import Progress, keywords
from rmsnorm_export.rewrite.optimize import optimize_model
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.result import Report, Result
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.torch.export.clean import tidy
from rmsnorm_export.torch.export.failure import collected, explain
from rmsnorm_export.torch.export.translate import translation_table
from rmsnorm_export.torch_options import ExportOptions

OLDEST_OPSET = 18
"""PyTorch's translations are written for opset 18; below it they would be converted down."""

EXPORTING, TIDYING = "exporting to ONNX", "tidying the graph"
RECOGNISING, WRITING = "recognising the norms", "writing"
STAGES = (EXPORTING, TIDYING, RECOGNISING, WRITING)
"""The texts for ``progress``, in order."""

Input = TypeVar("Input")


def tell(progress: Progress | None, stage: str, part: str = "") -> None:
    """Say that a stage begins, of a part of the model."""
    if progress:
        progress(f"{stage}: {part}" if part else stage, STAGES.index(stage), len(STAGES))


def trace(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
) -> tuple[ir.Model, str]:
    """Return a module as plain ONNX in memory, every norm as the module computes it.

    The weights are still the module's.

    Returns:
        The model, and what PyTorch's exporter printed and warned of.

    Raises:
        UsageError, InputError: as `rmsnorm_export.export`.
    """
    positional, named, axes = tuple(args), dict(options.kwargs or {}), options.dynamic_shapes
    _check_weights(module)
    _check_axes(axes, (positional, named))
    tell(options.progress, EXPORTING)
    with collected() as lines:
        try:
            with inference(module):
                program = torch.onnx.export(
                    module,
                    positional,
                    kwargs=named or None,
                    dynamo=True,
                    opset_version=options.opset,
                    dynamic_shapes=axes,
                    input_names=options.input_names,
                    output_names=options.output_names,
                    custom_translation_table=translation_table(),
                    optimize=False,
                )
        except Exception as error:
            raise explain(error, module, positional, named) from error
    assert program is not None
    model = program.model
    tell(options.progress, TIDYING)
    _check_dynamic(model, axes)
    if not options.output_names:
        _name_outputs(program.exported_program, model)
    with collected() as more:
        tidy(model)
    return model, "\n".join([*lines, *more])


def _check_weights(module: object) -> None:
    """Refuse a module whose weights have no values."""
    if isinstance(module, torch.nn.Module):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_meta:
                raise UsageError(
                    "The module has weights without values.",
                    found=f"{name} is on the meta device",
                    fix="load them first, e.g. by torch.load(PATH, mmap=True) and "
                    "load_state_dict(state, assign=True)",
                )


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


def _name_outputs(program: torch.export.ExportedProgram | None, model: ir.Model) -> None:
    """Name outputs by the keys of a dictionary (``logits``), else ``output``, ``output_1``."""
    outputs = model.graph.outputs
    spec = None if program is None else program.call_spec.out_spec
    if spec is None or spec.num_leaves != len(outputs):
        return
    tree = pytree.tree_unflatten(list(outputs), spec)
    if isinstance(tree, Mapping):
        groups = [(str(key), pytree.tree_leaves(value)) for key, value in tree.items()]
        names = [
            key if len(leaves) == 1 else f"{key}_{i}"
            for key, leaves in groups
            for i in range(len(leaves))
        ]
    else:
        names = [f"output_{i}" if i else "output" for i in range(len(outputs))]
    for value, name in zip(outputs, names, strict=True):
        if value.producer() is not None:  # an output that is an input keeps that name
            value.name = name


def _check_axes(dynamic_shapes: Any, arguments: Any) -> None:
    """Refuse an axis that its input does not have; PyTorch passes over those below zero.

    Raises:
        UsageError: naming the input and the axis.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if hasattr(leaf, "shape")]
    for number, (tensor, axes) in enumerate(_asked_axes(dynamic_shapes, tensors)):
        for axis in axes:
            if not 0 <= axis < len(tensor.shape):
                raise UsageError(
                    "The argument dynamic_shapes names an axis that its input does not have.",
                    found=f"axis {axis} of input {number}, of shape {list(tensor.shape)}",
                    fix='count axes from 0, e.g. {"x": {0: "batch"}}',
                )


def _check_dynamic(model: ir.Model, dynamic_shapes: Any) -> None:
    """Refuse a dimension that was asked to be dynamic and is not.

    PyTorch fixes a dimension on which the module's Python code depends without an error.

    Raises:
        UsageError: naming the input, the axis and the size at which the module fixes it.
    """
    for value, axes in _asked_axes(dynamic_shapes, model.graph.inputs):
        for axis, asked in axes.items():
            dynamic = isinstance(asked, str | torch.export.Dim) or asked == torch.export.Dim.DYNAMIC
            size = value.shape[axis] if value.shape is not None else None
            if dynamic and isinstance(size, int):
                raise UsageError(
                    "The module fixes the size of a dimension that was asked to be dynamic.",
                    found=f"input {value.name!r}, axis {axis}: {size}",
                    fix="give it a fixed size, or change the module so that its code does not "
                    "depend on that size",
                )


def _asked_axes(
    dynamic_shapes: Any, inputs: Sequence[Input]
) -> Iterator[tuple[Input, dict[int, Any]]]:
    """Yield each input and what is asked of its axes, where it is clear which is whose."""
    leaves = pytree.tree_leaves(dynamic_shapes, is_leaf=_is_axes)
    if dynamic_shapes and len(leaves) == len(inputs):
        for value, leaf in zip(inputs, leaves, strict=True):
            if isinstance(leaf, dict | list | tuple | None):
                yield value, leaf if isinstance(leaf, dict) else dict(enumerate(leaf or ()))


def _is_axes(value: object) -> bool:
    """Return whether these are the axes of one input, and no container of those of several."""
    if isinstance(value, dict):
        return all(isinstance(key, int) for key in value)
    parts = value if isinstance(value, list | tuple) else ()
    return value is None or not any(isinstance(part, list | tuple | dict) for part in parts)


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class ExportResult(Shown):
    """Outcome of `export`.

    Attributes:
        path: the file that was written.
        model: what is in it.
        report: every norm: its node, its module's path, its class of rewrite.
        saved: size, external data files and notes of the file.
        log: what PyTorch's exporter printed and warned of.
    """

    path: Path
    model: ir.Model
    report: Report
    saved: SaveResult
    log: str

    def _shown(self) -> Report:
        return self.report


def convert(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
) -> tuple[Result, str]:
    """Return a module with every norm as one node, and the exporter's log; as ``export``."""
    model, log = trace(module, args, dataclasses.replace(options, opset=_opset(options)))
    tell(options.progress, RECOGNISING)
    own = keywords(options, RewriteOptions) | {"target": options.form}
    result = optimize_model(model, OptimizeOptions(**own))
    source = f"PyTorch module {type(module).__module__}.{type(module).__qualname__}"
    return result.noting((), source=source), log


def _opset(options: ExportOptions) -> int | None:
    opset, row = options.opset, options.consumer
    oldest = max(OLDEST_OPSET, TARGETS[options.form].min_opset)
    if opset is None:
        # PyTorch's choice may be newer than an old runtime.
        return oldest if oldest > OLDEST_OPSET or (row and row.opset) else None
    if not oldest <= opset <= NEWEST_OPSET:
        raise UsageError(
            f"The opset is out of the range of the target {options.form}.",
            found=f"opset {opset}",
            fix=f"use {oldest} to {NEWEST_OPSET}, or omit it",
        )
    return opset

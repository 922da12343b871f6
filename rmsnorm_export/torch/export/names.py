"""Names of a graph's outputs, and whether the dimensions that were to be dynamic are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.errors import UsageError

Input = TypeVar("Input")


def output_names(program: torch.export.ExportedProgram | None, model: ir.Model) -> list[str]:
    """Names for the outputs: the keys of a dictionary (``logits``), else ``output``, ``output_1``.

    Empty when the graph has other outputs than the program returns.
    """
    spec = None if program is None else program.call_spec.out_spec
    count = len(model.graph.outputs)
    if spec is None or spec.num_leaves != count:
        return []
    built = pytree.tree_unflatten(list(range(count)), spec)
    keys: list[str] = []
    if isinstance(built, Mapping):
        for key, value in built.items():
            leaves = pytree.tree_leaves(value)
            keys += [str(key) if len(leaves) == 1 else f"{key}_{i}" for i in range(len(leaves))]
    else:
        keys = ["output" if i == 0 else f"output_{i}" for i in range(count)]
    return keys if len(keys) == count else []


def rename_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Give the outputs these names; an output that is an input or comes twice keeps its own."""
    outputs = list(model.graph.outputs)
    inputs = {value.name for value in model.graph.inputs}
    own = {
        name: value
        for value, name in zip(outputs, names, strict=False)
        if value.producer() is not None and outputs.count(value) == 1 and name not in inputs
    }
    rename_values(model, list(own.values()), list(own))


def rename_values(model: ir.Model, values: Sequence[ir.Value], names: Sequence[str]) -> None:
    """Give the values these names; others that have one of them make way."""
    new = set(names)
    inner = (v for node in model.graph.all_nodes() for v in node.outputs)
    everything = [*model.graph.inputs, *model.graph.initializers.values(), *inner]
    taken = {value.name for value in everything} | new
    for value in everything:
        if value.name in new:
            number = 1
            while f"{value.name}_{number}" in taken:
                number += 1
            value.name = f"{value.name}_{number}"
            taken.add(value.name)
    for value, name in zip(values, names, strict=True):
        value.name = name


def check_names(names: Sequence[str] | None, option: str, values: Sequence[ir.Value]) -> None:
    """Refuse names that are not as many as the values, or not unique.

    Raises:
        UsageError: naming the option and the values.
    """
    if names is None:
        return
    have = ", ".join(str(value.name) for value in values)
    if len(names) != len(values) or len(set(names)) != len(names):
        raise UsageError(
            f"{option} must give each {option.split('_')[0]} of the graph its own name.",
            found=f"{len(names)} names ({', '.join(names)}) for {len(values)}: {have}",
            fix=f"give {len(values)} different names, in that order",
        )


def check_axes(dynamic_shapes: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Every axis in ``dynamic_shapes`` is one that its input has.

    Raises:
        UsageError: naming the input and the axis.
    """
    tensors = [t for t in pytree.tree_leaves((tuple(args), dict(kwargs))) if hasattr(t, "shape")]
    for number, (tensor, axes) in enumerate(_asked_axes(dynamic_shapes, tensors)):
        for axis in axes:
            if not 0 <= axis < len(tensor.shape):
                raise UsageError(
                    "The dynamic shapes name an axis that the input does not have.",
                    found=f"axis {axis} of input {number}, of shape {list(tensor.shape)}",
                    fix=f"use axes from 0 to {len(tensor.shape) - 1}",
                )


def check_dynamic(model: ir.Model, dynamic_shapes: Any) -> None:
    """Every dimension that was asked to be dynamic is symbolic in the graph.

    PyTorch fixes a dimension on which the module's Python code depends without an error.

    Raises:
        UsageError: naming the input, the axis and the size at which the module fixes it.
    """
    for value, axes in _asked_axes(dynamic_shapes, model.graph.inputs):
        for axis, asked in axes.items():
            dynamic = isinstance(asked, str | torch.export.Dim) or asked == torch.export.Dim.DYNAMIC
            if not dynamic or value.shape is None or axis >= len(value.shape):
                continue
            size = value.shape[axis]
            if isinstance(size, int):
                name = asked if isinstance(asked, str) else getattr(asked, "__name__", "")
                raise UsageError(
                    "The module fixes the size of a dimension that was asked to be dynamic.",
                    found=f"input {value.name!r}, axis {axis} ({name or 'dynamic'}): {size}",
                    fix="give it a fixed size, or change the module so that its code does not "
                    "depend on that size",
                )


def _asked_axes(
    dynamic_shapes: Any, inputs: Sequence[Input]
) -> Iterator[tuple[Input, dict[int, Any]]]:
    """Each input and what is asked of its axes; none where it cannot be told which is whose."""
    leaves, _ = pytree.tree_flatten(dynamic_shapes, is_leaf=_is_axes)
    if dynamic_shapes and len(leaves) == len(inputs):
        for value, leaf in zip(inputs, leaves, strict=True):
            yield value, leaf if isinstance(leaf, dict) else dict(enumerate(leaf or ()))


def _is_axes(value: object) -> bool:
    """A leaf of ``dynamic_shapes``: the axes of one input."""
    if isinstance(value, dict):
        return all(isinstance(key, int) for key in value)
    if isinstance(value, list | tuple):
        return all(not isinstance(item, list | tuple | dict) for item in value)
    return value is None

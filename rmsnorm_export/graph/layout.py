"""Weights in the layout in which they are read: PyTorch stores those of a Linear transposed.

ONNX Runtime folds a Transpose of a weight when it loads a model, into a copy in memory; a weight
that is stored as it is read is mapped from its file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.tensors import memory_of

_Axes = tuple[int, ...] | None
"""The order of axes in which a weight is read; None: otherwise than by a Transpose."""


def store_as_read(models: Collection[ir.Model]) -> None:
    """Store a weight transposed if every reader transposes it, and omit these nodes; in place.

    One that is looked up as well, as a tied embedding is, stays in the layout of the table: it
    would else be stored twice, or its rows be gathered from columns. A transposed tensor is made
    when it is written, and is called ``NAME.T``. What several models share, they share after it.

    Args:
        models: that are stored together.
    """
    read: dict[Hashable, set[_Axes]] = defaultdict(set)
    weights = [value for model in models for value in model.graph.initializers.values()]
    for value in weights:
        read[_key(value)] |= _orders(value)
    transposed: dict[Hashable, ir.LazyTensor] = {}
    for value in weights:
        tensor, key = value.const_value, _key(value)
        (axes, *others) = read[key] or {None}
        if axes is None or others or tensor is None:
            continue
        if key not in transposed:
            transposed[key] = _turned(tensor, axes)
        _replace(value, transposed[key])


def _key(value: ir.Value) -> Hashable:
    return memory_of(value.const_value) or id(value.const_value)


def _orders(value: ir.Value) -> set[_Axes]:
    """Return the orders of axes in which a weight is read."""
    if value.is_graph_input() or value.is_graph_output():
        return {None}
    return {_axes_of(node) for node, _ in value.uses()}


def _axes_of(node: ir.Node) -> _Axes:
    """Return the axes of a Transpose; None of another node, or where a model gives the result."""
    if node.op_type != "Transpose" or node.domain or node.outputs[0].is_graph_output():
        return None
    return tuple(node.attributes.get_ints("perm", ())) or None


def _turned(tensor: ir.TensorProtocol, axes: tuple[int, ...]) -> ir.LazyTensor:
    def make() -> ir.TensorProtocol:
        dense = np.ascontiguousarray(tensor.numpy().transpose(axes))
        return ir.Tensor(dense, dtype=tensor.dtype)

    shape = ir.Shape([tensor.shape.numpy()[axis] for axis in axes])
    return ir.LazyTensor(make, tensor.dtype, shape, name=f"{tensor.name}.T")


def _replace(value: ir.Value, tensor: ir.LazyTensor) -> None:
    """Let what read the transposed weight read this one."""
    nodes, graph = [node for node, _ in value.uses()], value.graph
    assert graph is not None
    del graph.initializers[str(value.name)]
    value.name = f"{value.name}.T"
    value.const_value, value.shape = tensor, tensor.shape
    graph.initializers.add(value)
    for node in nodes:
        node.outputs[0].replace_all_uses_with(value)
        assert node.graph is not None
        node.graph.remove(node, safe=True)

"""A cache of fixed size, written at the places of its new rows alone.

PyTorch's ``index_copy_`` becomes a ScatterND along the first axis, between two Transpose of the
whole cache: each token moves all that it holds three times. With the place of each row,
``[batch, head, token]``, ScatterND takes the cache as it is; a runtime copies it once, and not at
all where a caller binds one buffer as input and output. From opset 24 on TensorScatter writes into
caches that are inputs; TensorRT makes its KVCacheUpdate of it, which has one buffer for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.lower.builder import constant
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.rewrite.names import Names

_TO_FRONT, _BACK = (2, 0, 1, 3), (1, 2, 0, 3)
_TENSOR_SCATTER = 24
"""First opset with that operator."""


def write_rows(model: ir.Model) -> int:
    """Take away the transpositions around each write into a cache; in place, no number changes.

    Returns:
        How many there were, of caches ``[batch, heads, tokens, width]``.
    """
    build = _Builder(model)
    count = 0
    for scatter in list(model.graph):
        back = _back(scatter)
        if back is None:
            continue
        turned, places, rows = (one for one in scatter.inputs if one is not None)
        cache = turned.producer().inputs[0]  # type: ignore[union-attr]
        assert cache is not None
        build.before = scatter
        rows = build.rows(rows, places, cache)
        old, start = back.outputs[0], _first_place(places)
        recent = model.opset_imports[""] >= _TENSOR_SCATTER
        if recent and start is not None and cache.is_graph_input():
            made = build.add("TensorScatter", [cache, rows, build.starts(start, rows)], old.shape)
        else:
            index = build.places(places, rows, cache)
            made = build.add("ScatterND", [cache, index, rows], old.shape)
        made.type, name = old.type, str(old.name)
        old.replace_all_uses_with(made, replace_graph_outputs=True)
        old.name, made.name = build.names(f"{name}_transposed"), name
        made.producer().metadata_props.update(scatter.metadata_props)  # type: ignore[union-attr]
        model.graph.remove(back, safe=True)
        count += 1
    if count:
        passes.RemoveUnusedNodesPass()(model)
    return count


def _back(scatter: ir.Node) -> ir.Node | None:
    """The Transpose behind a write along the first axis, of a cache that one before it turned."""
    attributes = scatter.attributes
    if scatter.op_type != "ScatterND" or attributes.get_string("reduction", "none") != "none":
        return None
    cache, places, _ = scatter.inputs
    front = None if cache is None else cache.producer()
    uses = list(scatter.outputs[0].uses())
    if front is None or len(uses) != 1 or scatter.outputs[0].is_graph_output():
        return None
    shape = front.inputs[0].shape if front.inputs[0] is not None else None
    heads = None if shape is None or len(shape) != 4 else shape[1]
    along = places is not None and places.shape is not None and len(places.shape) == 2
    turned = _order(front) == _TO_FRONT and _order(uses[0].node) == _BACK
    known = isinstance(heads, int) and along and places.shape[1] == 1  # type: ignore[union-attr, index]
    return uses[0].node if turned and known else None


def _order(node: ir.Node | None) -> tuple[int, ...]:
    """Of a Transpose; empty for another node."""
    if node is None or node.op_type != "Transpose":
        return ()
    return tuple(node.attributes.get_ints("perm", ()))


def _first_place(places: ir.Value) -> ir.Value | None:
    """The first place, a number, where the others follow one by one: ``start + arange``."""
    column = places.producer()
    total = None if column is None else column.inputs[0]
    add = None if column is None or total is None else total.producer()
    if column is None or column.op_type != "Unsqueeze" or add is None or add.op_type != "Add":
        return None
    for count, start in (tuple(add.inputs), tuple(reversed(add.inputs))):
        if count is None or start is None or start.shape is None or len(start.shape):
            continue
        steps = count.producer()
        if count.const_value is not None:
            numbers = count.const_value.numpy()
            if np.array_equal(numbers, np.arange(numbers.size)):
                return start
        elif steps is not None and steps.op_type == "Range":
            ends = [one and ir.convenience.get_const_tensor(one) for one in steps.inputs]
            if [one and one.numpy().item() for one in (ends[0], ends[2])] == [0, 1]:
                return start
    return None


class _Builder:
    """New nodes before ``before``; what several writes have in common is made once."""

    def __init__(self, model: ir.Model) -> None:
        self.names = Names(model)
        self.before: ir.Node | None = None
        self._graph = model.graph
        self._made: dict[Any, ir.Value] = {}
        self._shared: dict[Any, tuple[ir.Value, ir.Value]] = {}

    def add(
        self, op_type: str, inputs: Sequence[ir.Value], shape: Any = None, **attributes: Any
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=self.names(f"cache/{op_type}"))
        assert self.before is not None
        kind = inputs[0].dtype if op_type != "Shape" else ir.DataType.INT64
        assert kind is not None
        self._graph.insert_before(self.before, node)
        (made,) = node.outputs
        made.name, made.type, made.shape = node.name, ir.TensorType(kind), shape
        return made

    def rows(self, rows: ir.Value, places: ir.Value, cache: ir.Value) -> ir.Value:
        """Return new rows with tokens in front as ``[batch, heads, tokens, width]``."""
        assert places.shape is not None
        assert cache.shape is not None
        expand = rows.producer()
        if expand is not None and expand.op_type == "Expand":
            inner, (batch, heads, _, width) = expand.inputs[0], cache.shape
            same = places.shape[0], batch, heads, width
            if inner is not None and inner.shape is not None and tuple(inner.shape) == same:
                rows = inner  # as wide already
        order, before = _BACK, rows.producer()
        if turned := _order(before):
            rows, order = before.inputs[0], tuple(turned[axis] for axis in _BACK)  # type: ignore
        if order == (0, 1, 2, 3):
            return rows
        shape = None if rows.shape is None else ir.Shape([rows.shape[axis] for axis in order])
        return self.add("Transpose", [rows], shape, perm=order)

    def places(self, places: ir.Value, rows: ir.Value, cache: ir.Value) -> ir.Value:
        """``[batch, heads, tokens, 3]``: batch, head and token of each row."""
        assert cache.shape is not None
        sizes = () if rows.shape is None else tuple(rows.shape)[:3]
        key: Any = tuple(map(str, sizes)) if sizes and None not in sizes else id(rows)
        if (places, key) in self._made:
            return self._made[places, key]
        if key not in self._shared:
            self._shared[key] = self._batch_and_head(rows, cache.shape[1])
        first, shape = self._shared[key]
        token = self.add("Reshape", [places, self._constant([1, 1, -1, 1])])
        token = self.add("Expand", [token, shape])
        made = self._made[places, key] = self.add("Concat", [first, token], axis=-1)
        return made

    def starts(self, start: ir.Value, rows: ir.Value) -> ir.Value:
        """The first place of each row of the batch."""
        key = start, None if rows.shape is None else str(rows.shape[0])
        if key not in self._made:
            batch = self.add("Shape", [rows], start=0, end=1)
            self._made[key] = self.add("Expand", [start, batch])
        return self._made[key]

    def _batch_and_head(self, rows: ir.Value, heads: Any) -> tuple[ir.Value, ir.Value]:
        """``[batch, heads, tokens, 2]``, and the shape ``[batch, heads, tokens, 1]``."""
        sizes = self.add("Shape", [rows], start=0, end=3)
        shape = self.add("Concat", [sizes, self._constant([1])], axis=0)
        last = self.add("Gather", [sizes, self._constant(0)], axis=0)
        batch = self.add("Range", [self._constant(0), last, self._constant(1)])
        batch = self.add("Reshape", [batch, self._constant([-1, 1, 1, 1])])
        head = self._constant([[[[one]] for one in range(heads)]])
        each = [self.add("Expand", [one, shape]) for one in (batch, head)]
        return self.add("Concat", each, axis=-1), shape

    def _constant(self, numbers: Any) -> ir.Value:
        if (key := str(numbers)) not in self._made:
            array: Array = np.array(numbers, np.int64)
            self._made[key] = constant(self.names("cache/const"), array, ir.DataType.INT64)
            self._graph.register_initializer(self._made[key])
        return self._made[key]

"""A cache of fixed size, written at the places of its new rows alone.

PyTorch's ``index_copy_`` becomes a ScatterND along the first axis, between two Transpose of the
whole cache: each token moves all that it holds three times. ScatterElements takes the cache as it
is; a runtime copies it once, and not at all where a caller binds one buffer as input and output.
From opset 24 on TensorScatter writes into caches that are inputs; TensorRT makes its KVCacheUpdate
of it, which has one buffer for both.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.rewrite.names import Names

_BACK = (1, 2, 0, 3)
_TURNS = ((2, 0, 1, 3), _BACK)
"""Orders of the axes in front of a write, and behind it."""

_TENSOR_SCATTER = 24
"""First opset with that operator."""


def write_rows(model: ir.Model) -> int:
    """Take away the transpositions around each write into a cache; in place, no number changes.

    Returns:
        How many there were, of caches ``[batch, heads, tokens, width]``.
    """
    names, count = Names(model), 0
    for scatter in list(model.graph):
        if (write := _write_of(scatter)) is None:
            continue
        cache, places, rows, back = write
        tape = ir.tape.Tape()
        rows = tape.op("Transpose", [rows], {"perm": _BACK})
        start = _first_place(places) if model.opset_imports[""] >= _TENSOR_SCATTER else None
        if start is not None and cache.is_graph_input():
            batch = tape.op("Shape", [rows], {"start": 0, "end": 1})
            output = tape.op("TensorScatter", [cache, rows, tape.op("Expand", [start, batch])])
        else:
            column = tape.op("Constant", [], {"value_ints": [1, 1, -1, 1]})
            index = tape.op("Reshape", [places, column])
            index = tape.op("Expand", [index, tape.op("Shape", [rows])])
            output = tape.op("ScatterElements", [cache, index, rows], {"axis": 2})
        for node in tape.nodes:
            node.name = names(f"cache/{node.op_type}")
            node.outputs[0].name = names(f"{node.name}_output")
        tape.nodes[-1].metadata_props.update(scatter.metadata_props)
        ir.convenience.replace_nodes_and_values(
            model.graph, back, [back], tape.nodes, back.outputs, [output]
        )
        count += 1
    if count:
        passes.RemoveUnusedNodesPass()(model)
    return count


def _write_of(scatter: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, ir.Node] | None:
    """Return the cache, places and rows of a write along the tokens, and the Transpose behind."""
    attributes, written = scatter.attributes, scatter.outputs[0]
    if scatter.op_type != "ScatterND" or attributes.get_string("reduction", "none") != "none":
        return None
    turned, places, rows = scatter.inputs
    front, uses = None if turned is None else turned.producer(), list(written.uses())
    if front is None or places is None or rows is None or len(uses) != 1:
        return None
    cache, back, shape = front.inputs[0], uses[0].node, places.shape
    along = shape is not None and len(shape) == 2 and shape[1] == 1
    if cache is None or written.is_graph_output() or not along:
        return None
    return (cache, places, rows, back) if (_order(front), _order(back)) == _TURNS else None


def _order(node: ir.Node) -> tuple[int, ...]:
    """Of a Transpose; empty for another node."""
    return tuple(node.attributes.get_ints("perm", ())) if node.op_type == "Transpose" else ()


def _first_place(places: ir.Value) -> ir.Value | None:
    """Return the first place, a number, where the others follow: ``Unsqueeze(start + arange)``."""
    column = places.producer()
    total = column.inputs[0] if column is not None and column.op_type == "Unsqueeze" else None
    add = None if total is None else total.producer()
    if add is None or add.op_type != "Add":
        return None
    constants = Constants()
    for steps, start in (add.inputs, add.inputs[::-1]):
        if steps is None or start is None or start.shape is None or len(start.shape):
            continue
        counting = steps.producer()
        if counting is not None and counting.op_type == "Range":
            first, _, step = (constants.scalar(value) for value in counting.inputs)
            if (first, step) == (0, 1):
                return start
        numbers = constants.array(steps)
        if numbers is not None and np.array_equal(numbers, np.arange(numbers.size)):
            return start
    return None

"""A cache of fixed size, written at the places of its new rows alone.

PyTorch's ``index_copy_`` becomes a ScatterND along the first axis, between two Transpose of the
whole cache: each token moves all that it holds three times. ScatterElements takes the cache as it
is; a runtime copies it once, and not at all where a caller binds one buffer as input and output.
The attention that reads the cache takes it as it is, too.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules

from rmsnorm_export.decoder.grouped import group_heads
from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import replace

_BACK = (1, 2, 0, 3)
_TURNS = ((2, 0, 1, 3), _BACK)
"""Orders of the axes before a write, and after it."""


def write_rows(model: ir.Model) -> int:
    """Take away the transpositions around each write into a cache, and copies for groups of heads.

    In place. No fusion of transformers knows the graph then.

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
        column = tape.op("Constant", [], {"value_ints": [1, 1, -1, 1]})
        index = tape.op("Reshape", [places, column])
        index = tape.op("Expand", [index, tape.op("Shape", [rows])])
        output = tape.op("ScatterElements", [cache, index, rows], {"axis": 2})
        for node in tape.nodes:
            node.name = names(f"cache/{node.op_type}")
            node.outputs[0].name = names(f"{node.name}_output")
        tape.nodes[-1].metadata_props.update(scatter.metadata_props)
        replace(back, tape.nodes, [output])
        count += 1
    if count:
        group_heads(model)
        drop_redundant(model)
        RewritePass((rules.transpose_transpose_rule, rules.no_op_transpose_rule))(model)
        IdentityEliminationPass()(model)
    return count


def _write_of(scatter: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, ir.Node] | None:
    """Return the cache, places and rows of a write along the tokens, and the Transpose after it."""
    attributes, written = scatter.attributes, scatter.outputs[0]
    if scatter.op_type != "ScatterND" or attributes.get_string("reduction", "none") != "none":
        return None
    transposed, places, rows = scatter.inputs
    front, uses = None if transposed is None else transposed.producer(), list(written.uses())
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

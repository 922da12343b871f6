"""Heads that share keys and values, multiplied by these as they are.

PyTorch copies the keys of a group of heads to each of them before its product. Here the rows of a
group stand below each other in one product instead, and the keys are those that the cache holds:
``[batch, heads, group * rows, width]`` by ``[batch, heads, width, places]``.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.graph.order import replace
from rmsnorm_export.recognize.consts import producer_of, standard
from rmsnorm_export.recognize.types import Types

_TURNED = (0, 1, 3, 2)
_Shared = tuple[ir.Value, int, int]
"""Keys or values, [batch, heads, places, width]; how many heads they have and are copied to."""


def group_heads(model: ir.Model) -> None:
    """Multiply the heads of a group by what they share; in place."""
    types = Types(model)
    for product in [node for node in model.graph if standard(node) == "MatMul"]:
        left, right = product.inputs
        scaled = producer_of(right, "Mul")
        right, factor = scaled.inputs if scaled is not None else (right, None)
        copied = _shared(right, types)
        if copied is None or (factor is not None and types.info(factor)[1] != ()):
            continue
        (shared, heads, copies), turned = copied
        dtype, sizes = types.info(left) if left is not None else (None, None)
        if dtype is None or not sizes or len(sizes) != len(_TURNED) or sizes[1] != copies:
            continue
        tape = ir.tape.Tape()
        rows = tape.op("Reshape", [left, _sizes(tape, heads)])
        count = sizes[2] * copies // heads if isinstance(sizes[2], int) else None
        rows.shape = ir.Shape([sizes[0], heads, count, sizes[3]])
        rows.dtype = dtype
        if turned:
            shared = tape.op("Transpose", [shared], {"perm": _TURNED})
        if factor is not None:
            shared = tape.op("Mul", [shared, factor])
        output = tape.op("Reshape", [tape.op("MatMul", [rows, shared]), _sizes(tape, copies)])
        replace(product, tape.nodes, [output])
    passes.RemoveUnusedNodesPass()(model)


def _sizes(tape: ir.tape.Tape, heads: int) -> ir.Value:
    return tape.op("Constant", [], {"value_ints": [0, heads, -1, 0]})


def _shared(value: ir.Value | None, types: Types) -> tuple[_Shared, bool] | None:
    """Return what is copied to several heads, and whether its last two axes are turned then."""
    turned, last = False, _dims(value, types)
    while (view := producer_of(value, "Reshape", "Transpose")) is not None:
        if (copied := _copied(view, types)) is not None:
            return (copied, turned) if last[1:2] == copied[2:] else None
        order = tuple(view.attributes.get_ints("perm", ()))
        ends = [_dims(one, types)[-2:] for one in (view.inputs[0], value)]
        if order and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
            turned = not turned
        elif order or ends[0] != ends[1] or None in ends[0] or not ends[0]:
            return None
        value = view.inputs[0]
    return None


def _copied(view: ir.Node, types: Types) -> _Shared | None:
    """Return what an Unsqueeze, an Expand and this Reshape copy to heads next to each other."""
    copy = producer_of(view.inputs[0], "Expand")
    apart = None if copy is None else producer_of(copy.inputs[0], "Unsqueeze")
    if copy is None or apart is None or apart.inputs[0] is None:
        return None
    sizes, copies = _dims(apart.inputs[0], types), _dims(view.outputs[0], types)[1:2]
    if len(sizes) != len(_TURNED) or None in sizes or None in copies or not copies:
        return None
    batch, heads, *rest = sizes
    group = copies[0] // heads
    expected = (batch, heads, 1, *rest), (batch, heads, group, *rest), (batch, copies[0], *rest)
    seen = (_dims(node.outputs[0], types) for node in (apart, copy, view))
    return (apart.inputs[0], heads, copies[0]) if tuple(seen) == expected else None


def _dims(value: ir.Value | None, types: Types) -> tuple[Any, ...]:
    """Return the sizes of a value; () where its rank is not known."""
    return (None if value is None else types.info(value)[1]) or ()

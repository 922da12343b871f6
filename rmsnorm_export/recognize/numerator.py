"""Check that the row that is divided is the one that was squared, or begins with it."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of, standard
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Radial, View


def whole_row(radial: Radial) -> ir.Value:
    """Return what was squared, or what it is a part of."""
    node = producer_of(radial.x.root, "Slice", "Split")
    whole = None if node is None else node.inputs[0]
    return radial.x.root if whole is None else whole


def part_squared(ctx: Context, view: View, radial: Radial) -> int | None:
    """0 when the whole row of ``view`` was squared, k when its first k elements were, else None."""
    squared = radial.x.root
    if view.root is squared or ctx.same(view.root, squared):
        return 0
    return _leading_part(ctx, view, radial) or None


def _leading_part(ctx: Context, view: View, radial: Radial) -> int:
    """k when the squared tensor is the first k elements of the rows of ``view``, else 0."""
    node = radial.x.root.producer()
    k = radial.size
    if node is None or radial.axis != -1 or not k or not node.inputs:
        return 0
    source = node.inputs[0]
    if source is None or not ctx.same(source, view.root):
        return 0
    whole = ctx.types.static_last(view.root)
    if whole is None or k >= whole:
        return 0
    last = (-1, (ctx.types.rank(view.root) or 0) - 1)
    if standard(node) == "Split":
        first = radial.x.root is node.outputs[0]
        return k if first and node.attributes.get_int("axis", 0) in last else 0
    held = [ctx.constants.ints(v) for v in node.inputs[1:]]
    firsts = [[(0,), (k,), (axis,), *steps] for axis in last for steps in ([], [(1,)])]
    return k if standard(node) == "Slice" and held in firsts else 0

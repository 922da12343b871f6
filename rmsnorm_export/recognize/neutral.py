"""Nodes whose output holds the numbers of an earlier value, in its shape.

Either by themselves (Identity, a product with 1) or because they take back what came before
(Reshape, Transpose, Neg, a narrowing Cast). Values that are distinguished by
such nodes alone are one value for every fact.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import Context, widens
from rmsnorm_export.recognize.radial import same_dims, shaped_as
from rmsnorm_export.recognize.shape_rules import ENDLESS, Dims, axes_of

_MOST_STEPS = 8
"""Views that are followed back from the one that may undo them."""

_RESHAPES = ("Reshape", "Unsqueeze", "Squeeze", "Flatten")


def earlier(ctx: Context, node: ir.Node) -> ir.Value | None:
    """The value whose numbers, in whose shape, the first output of ``node`` holds; or None.

    Its element type is the same or a narrower one.
    """
    rule = NEUTRAL.get(node.op_type)
    return None if rule is None else rule(ctx, node)


def _only_input(_: Context, node: ir.Node) -> ir.Value | None:
    return node.inputs[0]


def _alone(_: Context, node: ir.Node) -> ir.Value | None:
    """Concat, Sum, Max of one tensor."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def _cast_back(ctx: Context, node: ir.Node) -> ir.Value | None:
    """To a type that holds every number of the source, or back to the type in which it was."""
    source, to = node.inputs[0], ctx.types.dtype(node.outputs[0])
    if source is None or to is None:
        return None
    if widens(ctx.types.dtype(source), to):
        return source
    return ctx.view(source).first.get(to)


def _with(number: float, *positions: int) -> Callable[[Context, ir.Node], ir.Value | None]:
    """An operation that a constant at one of these positions makes neutral."""

    def rule(ctx: Context, node: ir.Node) -> ir.Value | None:
        for position in positions:
            constant, other = node.inputs[position], node.inputs[1 - position]
            if other is None or ctx.constants.scalar(constant) != number:
                continue
            if constant is not None and _adds_no_axis(ctx, constant, other):
                return other
        return None

    return rule


def _sign_back(ctx: Context, node: ir.Node) -> ir.Value | None:
    inner = ctx.maker(node.inputs[0], "Neg")
    return None if inner is None else inner.inputs[0]


def _adds_no_axis(ctx: Context, value: ir.Value, source: ir.Value) -> bool:
    """Broadcast with ``source``, ``value`` leaves its shape as it is."""
    if ctx.view(value).root is ctx.view(source).root:
        return True
    dims = ctx.types.info(value)[1]
    if dims is None or set(dims) - {1}:
        return False
    return not dims or len(dims) <= (ctx.types.rank(source) or 0)


def _not_expanded(ctx: Context, node: ir.Node) -> ir.Value | None:
    source, sizes = node.inputs[0], ctx.constants.ints(node.inputs[1])
    if source is None:
        return None
    rank = ctx.types.rank(source)
    ones = sizes is not None and rank is not None and len(sizes) <= rank and set(sizes) <= {1}
    if ones or _is_shape_of(ctx, node.inputs[1], source):
        return source
    return source if _of_shape(ctx, node.outputs[0], source) else None


def _whole_slice(ctx: Context, node: ir.Node) -> ir.Value | None:
    """From the first to the last element of every axis that it names."""
    if len(node.inputs) < 3:
        return None
    bounds = [None if v is None else ctx.constants.ints(v) for v in node.inputs[1:5]]
    starts, ends = bounds[0], bounds[1]
    steps = bounds[3] if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
    if not starts or not ends or steps is None or set(steps) != {1} or set(starts) != {0}:
        return None
    whole = min(ends) >= ENDLESS or (
        node.inputs[0] is not None and _of_shape(ctx, node.outputs[0], node.inputs[0])
    )
    return node.inputs[0] if whole else None


def _of_shape(ctx: Context, value: ir.Value, source: ir.Value) -> bool:
    a, b = _dims_near(ctx, value, source), _dims_near(ctx, source, source)
    return a is not None and b is not None and same_dims(a, b)


def _dims_near(ctx: Context, value: ir.Value, source: ir.Value) -> Dims:
    """ONNX shape inference is asked for the sake of a chain alone, not for every view there is."""
    return ctx.types.shape(value) if source in ctx.facts else ctx.types.info(value)[1]


def _is_shape_of(ctx: Context, sizes: ir.Value | None, source: ir.Value) -> bool:
    """``sizes`` is ``Shape(source)``, all of it."""
    shaped = None if sizes is None else shaped_as(ctx.view(sizes).root)
    return shaped is not None and ctx.view(shaped).root is ctx.view(source).root


def _axes_back(ctx: Context, node: ir.Node) -> ir.Value | None:
    """With the Transposes in front of it: every axis is back where it was."""
    current, order = node, _order(ctx, node)
    for _ in range(_MOST_STEPS):
        source = current.inputs[0]
        if order is None or source is None:
            return None
        if order == sorted(order):
            return source
        before = ctx.maker(source, "Transpose")
        inner = None if before is None else _order(ctx, before)
        if before is None or inner is None or len(inner) != len(order):
            return None
        current, order = before, [inner[axis] for axis in order]
    return None


def _order(ctx: Context, node: ir.Node) -> list[int] | None:
    order = node.attributes.get_ints("perm", None)
    if order is None:
        rank = None if node.inputs[0] is None else ctx.types.rank(node.inputs[0])
        return None if rank is None else list(range(rank))[::-1]
    return list(order) if sorted(order) == list(range(len(order))) else None


def _dimensions_back(ctx: Context, node: ir.Node) -> ir.Value | None:
    """With the reshaping nodes in front of it: every dimension is what it was."""
    current = node
    for _ in range(_MOST_STEPS):
        source = current.inputs[0]
        if source is None:
            return None
        source = ctx.view(source).root
        if _has_dims_of(ctx, node, source):
            return source
        before = producer_of(source, *_RESHAPES)
        if before is None:
            return None
        if current is node and _takes_back(ctx, node, before) and before.inputs[0] is not None:
            return ctx.view(before.inputs[0]).root
        current = before
    return None


def _has_dims_of(ctx: Context, node: ir.Node, source: ir.Value) -> bool:
    """The output of a reshaping node certainly has the dimensions of ``source``, whose elements it
    has, in their order."""
    if node.op_type == "Reshape" and _is_shape_of(ctx, node.inputs[1], source):
        return True
    a, b = _dims_near(ctx, node.outputs[0], source), _dims_near(ctx, source, source)
    return a is not None and b is not None and same_dims(a, b, unnamed=1)


def _takes_back(ctx: Context, node: ir.Node, before: ir.Node) -> bool:
    """Squeeze of the axes that an Unsqueeze has made, or the reverse, whatever the rank."""
    if {node.op_type, before.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    axes, axes_before = axes_of(node, ctx.constants), axes_of(before, ctx.constants)
    return bool(axes) and axes == axes_before


NEUTRAL: dict[str, Callable[[Context, ir.Node], ir.Value | None]] = {
    "Identity": _only_input,
    **dict.fromkeys(("Concat", "Max", "Min", "Mean"), _alone),
    "Sum": lambda ctx, node: (_alone if len(node.inputs) != 2 else _with(0.0, 1, 0))(ctx, node),
    "Cast": _cast_back,
    "CastLike": _cast_back,
    "Mul": _with(1.0, 1, 0),
    "Div": _with(1.0, 1),
    "Pow": _with(1.0, 1),
    "Add": _with(0.0, 1, 0),
    "Sub": _with(0.0, 1),
    "Neg": _sign_back,
    "Expand": _not_expanded,
    "Slice": _whole_slice,
    "Transpose": _axes_back,
    **dict.fromkeys(_RESHAPES, _dimensions_back),
}
"""Operators of the default domain that can be neutral, each with the rule that says when."""

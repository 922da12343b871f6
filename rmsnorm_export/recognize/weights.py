"""Which values are per-feature weights, and what is stored behind them."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.context import FLOATS, Context, widens
from rmsnorm_export.recognize.facts import Weight

_MAX_ANCESTORS = 16
_SHAPING = ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten")


def as_weight(
    ctx: Context, value: ir.Value, x: ir.Value, axis: int, last: int = -1, *, computed: bool = False
) -> Weight | None:
    """``value`` as a weight of the axes of ``x`` from ``axis`` to ``last``, or None.

    It must hold one number per feature (leading dimensions of 1 allowed), leave the shape of x as
    it is, and be a weight: an initializer, a graph input, or computed from those alone. Anything
    that may depend on the data is a gate or modulation and is left where it is, unless it is
    ``computed``: an operand that an operator calls its scale.
    """
    if ctx.view(value).root is ctx.view(x).root or ctx.types.dtype(value) not in FLOATS:
        return None
    dims, shape, k = ctx.types.shape(value), ctx.types.shape(x), -axis
    if dims is None or shape is None or not all(isinstance(d, int) for d in dims):
        return None
    if len(shape) < k or len(dims) > len(shape):
        return None
    tail = (*shape[axis : len(shape) + last + 1], *(1,) * (-1 - last))
    # A weight of fewer axes than are normalised repeats over the others: it is no scale of n.
    if tuple(dims[-k:]) != tail or any(d != 1 for d in dims[:-k]):
        return None
    if not computed and not is_weight(value, ctx.view(x).root):
        return None
    stored, offset = _stored(ctx, value, tail)
    early = not computed or is_weight(value, ctx.view(x).root)
    return Weight(value, stored, offset, early)


def keeps_shape(ctx: Context, value: ir.Value, x: ir.Value) -> bool:
    """A product of ``x`` with ``value`` certainly has the shape of ``x``."""
    dims, shape = ctx.types.shape(value), ctx.types.shape(x)
    if dims is None or shape is None or len(dims) > len(shape):
        return False
    pairs = zip(dims, shape[len(shape) - len(dims) :], strict=True)
    return all(d == 1 or (d is not None and d == size) for d, size in pairs)


def as_gain(ctx: Context, value: ir.Value, x: ir.Value) -> Weight | None:
    """``value`` as a factor of ``x`` that leaves its shape, whatever it is computed from.

    None for a constant number, of which an RMSNorm is another multiple.
    """
    number = ctx.constants.scalar(value)
    if number is not None or ctx.types.dtype(value) not in FLOATS or not keeps_shape(ctx, value, x):
        return None
    return Weight(value, value, 0.0, value.is_initializer(), per_feature=False)


def is_weight(value: ir.Value, x: ir.Value) -> bool:
    """Return whether nothing but initializers, constants and small inputs is behind ``value``."""
    seen: set[ir.Value] = set()
    stack: list[tuple[ir.Value, bool]] = [(value, True)]
    while stack:
        top, shaped_only = stack.pop()
        if top in seen:
            continue
        seen.add(top)
        if top is x or len(seen) > _MAX_ANCESTORS:
            return False
        if top.is_initializer() and not top.is_graph_input():
            continue
        node = top.producer()
        if node is None:
            # A graph or function input is a weight only when it is used as it comes: a condition
            # vector that goes through a layer is data.
            if not shaped_only:
                return False
            continue
        if standard(node) == "Constant":
            continue
        scalar_shift = standard(node) == "Add"
        stack.extend(
            (v, shaped_only and (scalar_shift or standard(node) in _SHAPING))
            for v in node.inputs
            if v is not None
        )
    return True


def _stored(ctx: Context, value: ir.Value, tail: tuple[object, ...]) -> tuple[ir.Value, float]:
    """The tensor behind casts and ``offset +``; casting it once gives the same numbers."""
    offset = 0.0
    cast_seen = False
    current = value
    for _ in range(_MAX_ANCESTORS):
        node = current.producer()
        if node is None or current.is_initializer():
            break
        source, added = _step(ctx, node, current, tail, may_add=not cast_seen and offset == 0.0)
        if source is None:
            break
        if standard(node) == "Cast" and ctx.types.dtype(source) != ctx.types.dtype(current):
            if not widens(ctx.types.dtype(source), ctx.types.dtype(current)) and cast_seen:
                break
            cast_seen = True
        current, offset = source, offset + added
    return current, offset


def _step(
    ctx: Context, node: ir.Node, current: ir.Value, tail: tuple[object, ...], *, may_add: bool
) -> tuple[ir.Value | None, float]:
    """The input of ``node`` that holds the same numbers (a cast apart), or None; what is added."""
    first, operator = node.inputs[0] if node.inputs else None, standard(node)
    if first is None:
        return None, 0.0
    if operator == "Add" and may_add:
        for scalar, weight in (node.inputs, node.inputs[::-1]):
            offset = ctx.constants.scalar(scalar)
            if offset and weight is not None:
                dims = ctx.types.shape(weight)
                if dims is not None and dims == ctx.types.shape(current):
                    return weight, offset
    same = operator == "Identity" or (operator == "Cast" and ctx.types.dtype(first) in FLOATS)
    if operator in ("Unsqueeze", "Squeeze", "Reshape"):
        dims, k = ctx.types.shape(first), len(tail)
        same = dims is not None and tuple(dims[-k:]) == tail and all(d == 1 for d in dims[:-k])
    return first if same else None, 0.0

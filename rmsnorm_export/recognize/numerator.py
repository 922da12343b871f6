"""Check that the row that is divided is the one that was squared, a multiple of it, or begins with
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.recognize.consts import is_ordinary, producer_of, rounding_of, standard
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Radial, View

_MOST_FACTORS = 4
"""Products with a constant behind one another."""

_RELATED = ("Mul", "Div", "Neg", "Abs", "Cast", "CastLike", "Identity", "Reshape", "Unsqueeze",
            "Squeeze", "Flatten", "Transpose")  # fmt: skip
_MOST_RELATED = 16
"""Values that one may be a multiple of."""

_MOST_SHAPES = 8
"""Nodes behind one another that keep the elements of a tensor in their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Multiple:
    """``factor`` times ``view``, or its absolute value where ``positive``.

    Attributes:
        slack: relative error of ``factor`` that the rounding of one constant explains.
        narrow: the roundings of the products in half types.
    """

    view: View
    factor: float = 1.0
    positive: bool = False
    slack: float = 0.0
    narrow: tuple[str, ...] = ()


def related(a: ir.Value, b: ir.Value) -> bool:
    """Return whether two values may hold multiples of the same numbers; no type is asked for."""
    reached: list[set[ir.Value]] = []
    for value in (a, b):
        seen, stack = {value}, [value]
        while stack and len(seen) < _MOST_RELATED:
            node = producer_of(stack.pop(), *_RELATED)
            more = () if node is None else (v for v in node.inputs if v is not None)
            stack += [v for v in more if v not in seen]
            seen.update(stack)
        reached.append(seen)
    return not reached[0].isdisjoint(reached[1])


def multiple(ctx: Context, value: ir.Value, *, signed: bool = True) -> Multiple:
    """Return what ``value`` is a constant multiple of; without signs behind Neg and Abs as well."""
    result = Multiple(ctx.view(value))
    for _ in range(_MOST_FACTORS):
        node = producer_of(result.view.root, "Mul", "Div", *(() if signed else ("Neg", "Abs")))
        step = None if node is None else _without_factor(ctx, node)
        if node is None or step is None:
            break
        source, factor, slack = step
        if result.positive:
            factor = abs(factor)
        positive = result.positive or node.op_type == "Abs"
        dtype = ctx.types.dtype(node.outputs[0])
        narrow = result.narrow
        if slack is not None and dtype is not None and int(dtype) in HALF_TYPES:
            narrow = (f"x times a constant rounded to {type_name(int(dtype))}",)
        product, slack = result.factor * factor, max(result.slack, slack or 0.0)
        if not is_ordinary(product, dtype):
            break
        result = Multiple(ctx.view(source), product, positive, slack, narrow)
    return result


def _without_factor(ctx: Context, node: ir.Node) -> tuple[ir.Value, float, float | None] | None:
    """Return what a node multiplies with a constant, that number, and its error in half types (None
    of a sign)."""
    a, b = (*node.inputs, None)[:2]
    if node.op_type in ("Neg", "Abs"):
        return None if a is None else (a, -1.0 if node.op_type == "Neg" else 1.0, None)
    for source, constant in ((a, b), (b, a))[: 1 if node.op_type == "Div" else 2]:
        array, number = ctx.constants.array(constant), ctx.constants.scalar(constant)
        if source is None or array is None or not number:
            continue
        if array.ndim and array.ndim > (ctx.types.rank(source) or 0):
            continue
        factor = 1.0 / number if node.op_type == "Div" else number
        return source, factor, rounding_of(array)
    return None


def shapes_of(ctx: Context, value: ir.Value) -> list[ir.Value]:
    """Return ``value`` and the earlier values of which it holds the numbers (see ``in_order``)."""
    values = [ctx.view(value).root]
    while len(values) < _MOST_SHAPES:
        node = producer_of(values[-1], "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose")
        if node is None or node.inputs[0] is None:
            break
        values.append(ctx.view(node.inputs[0]).root)
    return values


def in_order(ctx: Context, values: Sequence[ir.Value]) -> bool:
    """Return whether the first of ``shapes_of`` holds the numbers of the last in their order: where
    axes are transposed, those of one element alone are moved past others."""
    for value in values[:-1]:
        node = producer_of(value, "Transpose")
        if node is None or node.inputs[0] is None:
            continue
        dims, order = ctx.types.shape(node.inputs[0]), node.attributes.get_ints("perm", None)
        moved = [axis for axis in order or () if dims is None or dims[axis] != 1]
        if order is None or moved != sorted(moved):
            return False
    return True


def multiples(ctx: Context, a: ir.Value, b: ir.Value) -> tuple[Multiple, Multiple] | None:
    """Return two values as multiples of one row, so that their product has the sign of a square
    times that of their factors; None where they are not certainly such."""
    left, right = multiple(ctx, a, signed=False), multiple(ctx, b, signed=False)
    same = left.positive == right.positive and ctx.same(left.view.root, right.view.root)
    return (left, right) if same else None


def unscaled(ctx: Context, radial: Radial) -> Radial | None:
    """Return the mean square of ``x`` of that of ``c * x``; None where there is no c."""
    squared = multiple(ctx, radial.x.root, signed=False)
    if squared.factor in (1.0, -1.0):
        return None
    step = dataclasses.replace(radial, x=squared.view, plain=False)
    step.a, step.slack = radial.a * squared.factor**2, max(radial.slack, squared.slack)
    step.narrow = (*radial.narrow, *squared.narrow)
    step.edges = (*radial.edges, "x that is multiplied with a constant before it is squared")
    return step


def whole_row(radial: Radial) -> ir.Value:
    """Return what was squared, or what it is a part of."""
    node = producer_of(radial.x.root, "Slice", "Split")
    whole = None if node is None else node.inputs[0]
    return radial.x.root if whole is None else whole


def part_squared(ctx: Context, view: View, radial: Radial) -> int | None:
    """0 when the whole row of ``view`` was squared, k when its first k elements were, else None."""
    squared = radial.x.root
    if view.root is squared or ctx.same(ctx.magnitude(view.root).root, squared):
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
    rank = ctx.types.rank(view.root)
    if standard(node) == "Split":
        axis = node.attributes.get_int("axis", 0)
        first = radial.x.root is node.outputs[0]
        last = axis == -1 or (rank is not None and axis == rank - 1)
        return k if first and last else 0
    if standard(node) != "Slice" or len(node.inputs) < 4:
        return 0
    starts, ends, axes = (ctx.constants.ints(v) for v in node.inputs[1:4])
    steps = ctx.constants.ints(node.inputs[4]) if len(node.inputs) > 4 else (1,)
    if starts != (0,) or ends != (k,) or steps != (1,) or axes is None or len(axes) != 1:
        return 0
    return k if axes[0] == -1 or (rank is not None and axes[0] == rank - 1) else 0

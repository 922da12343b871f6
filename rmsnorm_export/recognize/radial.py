"""Transfer functions from a tensor to 1 / rms: squares, reductions, epsilon, roots, inverses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of, rounding_of
from rmsnorm_export.recognize.context import FLOATS, Context
from rmsnorm_export.recognize.facts import Fact, Flaw, Norm, Radial, Square, View, WeightedInverse
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.shape_rules import axes_of
from rmsnorm_export.recognize.shape_values import Dim, static


def square(ctx: Context, node: ir.Node, value: ir.Value, flaw: Flaw | None = None) -> None:
    """``node`` squares ``value`` (or nearly, with the reason in ``flaw``)."""
    fact = square_of(ctx, value)
    if fact is not None:
        fact.flaw = fact.flaw or flaw
        ctx.facts[node.outputs[0]] = fact


def square_of(ctx: Context, value: ir.Value) -> Square | None:
    """The square of ``value``, computed in its type; None where that is no float type.

    That of a magnitude that nobody else reads is that of what it is of.
    """
    node = producer_of(value, "Abs")
    if node is not None and node.inputs[0] is not None and len({*ctx.read_by(value)}) == 1:
        value = node.inputs[0]
    dtype = ctx.types.dtype(value)
    if dtype is None:
        flaw = (
            "type-unknown", "the element type of x is unknown, so the rounding steps are",
            ctx.describe(value),
            "store types in the model (value_info); a function must be called with one type",
        )  # fmt: skip
        return Square(ctx.view(value), ir.DataType.UNDEFINED, flaw=flaw)
    return Square(ctx.view(value), dtype) if dtype in FLOATS else None


def power(ctx: Context, node: ir.Node) -> None:
    """Pow: a square, or a root or inverse of what is already known."""
    base, exponent = node.inputs[0], node.inputs[1]
    if base is None or exponent is None:
        return
    array, number = ctx.constants.array(exponent), ctx.constants.scalar(exponent)
    fact = ctx.facts.get(base) or (ctx.rows.get(base) if number in (0.5, -0.5) else None)
    if isinstance(ctx.facts.get(exponent), Radial):
        return
    if isinstance(fact, Radial):
        fits = array is not None and ctx.fits(array.ndim, fact)
        power_of_mean(ctx, node, fact, number if fits else None)
        return
    rank = 0 if array is None else array.ndim
    flaw: Flaw | None = None
    if number == 2.0:
        if rank > 1 and rank > (ctx.types.rank(base) or 0):
            flaw = (
                "exponent-rank", "the exponent has a higher rank than x, so the output grows",
                f"exponent of rank {rank}", "store the exponent as a scalar",
            )  # fmt: skip
        square(ctx, node, base, flaw)
    elif number is None or abs(number - 2.0) < 0.5:
        flaw = (
            "exponent-not-two", "the exponent is not the constant 2",
            f"exponent {number}" if number is not None else ctx.describe(exponent),
            "make the exponent a constant scalar 2",
        )  # fmt: skip
        if (stored := producer_of(exponent, "DequantizeLinear")) is not None:
            flaw = quantized(stored)
        # The rows of 2 ** x are those of x.
        wide = (ctx.types.rank(exponent) or 0) > (ctx.types.rank(base) or 0)
        square(ctx, node, exponent if wide else base, flaw)


def power_of_mean(ctx: Context, node: ir.Node, radial: Radial, number: float | None) -> None:
    """Pow of what is known, with this exponent, or with one that is no constant scalar."""
    if number == 2.0:
        squared_again(ctx, node, radial)
    elif number == -1.0:
        inverse_of(ctx, node, radial, 1.0)
    elif number in (0.5, -0.5):
        _take_root(ctx, node, radial, inverse=number == -0.5)
    else:
        reason, what = "power-of-mean-square", "no square root or inverse"
        if number is None:  # a root, as far as the file tells
            radial = dataclasses.replace(radial, rooted=True)
            reason, what = "power-not-constant", "no constant scalar"
        ctx.spoil(
            node, radial, reason, f"the mean square is raised to a power that is {what}",
            f"exponent {ctx.describe(node.inputs[1]) if number is None else number}",
            "use Sqrt, or Pow with a constant exponent 0.5 or -0.5",
        )  # fmt: skip


def squared_again(ctx: Context, node: ir.Node, radial: Radial) -> None:
    """The square of a mean square, or of its root."""
    ctx.spoil(
        node, radial, "power-of-mean-square", "the mean square is squared again",
        name_of(node), "an RMSNorm divides by the square root of the mean square, once",
    )  # fmt: skip


def centred(ctx: Context, root: ir.Value) -> ir.Node | None:
    """The node that takes the mean of its row from ``root``, if one does."""
    chosen = producer_of(root, "Where")  # as of a row of equal elements, which has 0 there
    rows = [root] if chosen is None else [v for v in chosen.inputs[1:] if v is not None]
    node = next(filter(None, (producer_of(row, "Sub") for row in rows)), None)
    if node is None or None in node.inputs:
        return None
    row, mean = (ctx.view(v).root for v in node.inputs if v is not None)
    maker = producer_of(mean, "ReduceMean")
    if maker is None or maker.inputs[0] is None:
        return None
    return node if ctx.view(maker.inputs[0]).root is row else None


def quantize(ctx: Context, node: ir.Node) -> None:
    """QuantizeLinear, DequantizeLinear: a pair of them rounds what is known, any other hides it."""
    output, source = node.outputs[0], ctx.constants.unrounded(node)
    if source is None:
        for value in () if ctx.constants.rounds(node) else node.inputs:
            hide(ctx, node, ctx.fact(value), quantized(node), output)
        return
    fact = ctx.fact(source)
    if isinstance(fact, Radial):
        what = "1 / rms" if fact.inverse else "rms" if fact.rooted else "mean square"
        ctx.set_radial(output, _with_rounding(fact, what))
    elif isinstance(fact, Square):
        narrow = tuple(dict.fromkeys((*fact.narrow, "square quantized")))
        ctx.facts[output] = dataclasses.replace(fact, narrow=narrow)
    elif isinstance(fact, WeightedInverse):
        radial = _with_rounding(fact.radial, "scale / rms")
        ctx.facts[output] = dataclasses.replace(fact, radial=radial)
    elif isinstance(fact, Norm) and fact.owner is None and fact.radial is not None:
        radial = _with_rounding(fact.radial, "row of length one")
        ctx.facts[output] = dataclasses.replace(fact, radial=radial)


def hide(ctx: Context, node: ir.Node, fact: Fact | None, flaw: Flaw, output: ir.Value) -> None:
    """Follow a fact to an ``output`` that is no part of a norm any more, for the refusal."""
    fact = fact.radial if isinstance(fact, WeightedInverse) else fact
    if isinstance(fact, Radial):
        ctx.flaw(fact.candidate, node, *flaw)
        ctx.set_radial(output, dataclasses.replace(fact, spoiled=True))
    elif isinstance(fact, Square):
        ctx.facts[output] = dataclasses.replace(fact, flaw=fact.flaw or flaw)


def _with_rounding(radial: Radial, what: str) -> Radial:
    narrow = tuple(dict.fromkeys((*radial.narrow, f"{what} quantized")))
    return dataclasses.replace(radial, narrow=narrow)


def both_unrounded(ctx: Context, view: View, radial: Radial) -> tuple[View, Radial] | None:
    """Return the row that is divided and what was squared, where one of them was quantized."""
    divided, squared = (
        ctx.view(ctx.constants.unrounded(row.root.producer()) or row.root)
        for row in (view, radial.x)
    )
    if not ctx.same(divided.root, squared.root):
        return None
    return divided, dataclasses.replace(_with_rounding(radial, "x"), x=squared)


def quantized(node: ir.Node) -> Flaw:
    """The flaw of a norm that is quantized on the way."""
    return (
        "quantized", "the norm is quantized on the way from the row to its output",
        f"{node.op_type} {name_of(node)!r}",
        "optimize first and quantize then, or omit the operators of the norm from it",
    )  # fmt: skip


def root_or_inverse(ctx: Context, node: ir.Node) -> None:
    """Sqrt, Reciprocal."""
    fact = ctx.fact(node.inputs[0])
    if node.op_type == "Sqrt" and node.inputs[0] is not None:
        fact = fact or ctx.rows.get(node.inputs[0])
        if isinstance(fact, Radial):
            _take_root(ctx, node, fact, inverse=False)
    elif isinstance(fact, Radial):
        inverse_of(ctx, node, fact, 1.0)


def _take_root(ctx: Context, node: ir.Node, radial: Radial, *, inverse: bool) -> None:
    """Sqrt, or Sqrt and then the inverse."""
    if radial.rooted or (radial.inverse and (inverse or radial.m < 0)):
        ctx.spoil(
            node, dataclasses.replace(radial, rooted=True), "second-root",
            "a second root or inverse is taken", name_of(node),
            "an RMSNorm divides by the square root of the mean square, once",
        )  # fmt: skip
        return
    m = math.sqrt(radial.m) if radial.inverse else radial.m
    plain = radial.plain and node.op_type == "Sqrt" and not radial.inverse
    step = dataclasses.replace(
        radial,
        rooted=True,
        m=m,
        inverse=radial.inverse or inverse,
        plain=plain,
        inverted_first=radial.inverse,
        floor=math.sqrt(max(radial.floor, 0.0)),
    )
    ctx.set_radial(node.outputs[0], step)


def inverse_of(
    ctx: Context, node: ir.Node, radial: Radial, numerator: float, constant: ir.Value | None = None
) -> None:
    """``numerator / radial``, where ``constant`` holds the numerator."""
    if radial.inverse or numerator == 0:
        ctx.spoil(
            node, radial, "second-inverse", "the inverse is inverted again", name_of(node),
            "divide x by the root, or multiply with its inverse",
        )  # fmt: skip
        return
    plain = radial.plain and node.op_type != "Pow" and numerator == 1.0
    step = dataclasses.replace(
        radial, inverse=True, m=numerator, slack=slack_with(ctx, radial, constant), plain=plain,
        multiplied=numerator != 1.0,
    )  # fmt: skip
    ctx.set_radial(node.outputs[0], step)


def times(ctx: Context, inverse: Radial, constant: ir.Value | None, factor: float) -> Radial:
    """``factor / rms``, where ``constant`` is that number, or what was divided by."""
    multiplied, slack = inverse.multiplied or factor != 1.0, slack_with(ctx, inverse, constant)
    return dataclasses.replace(
        inverse, m=inverse.m * factor, slack=slack, plain=False, multiplied=multiplied
    )


def slack_with(ctx: Context, radial: Radial, constant: ir.Value | None) -> float:
    """Return the slack of a product with a constant: half its rounding where the root follows."""
    array = ctx.constants.array(constant)
    rounding = 0.0 if array is None else rounding_of(array)
    return max(radial.slack, rounding if radial.rooted else rounding / 2)


def restore_axes(ctx: Context, node: ir.Node, radial: Radial) -> None:
    """Unsqueeze, Reshape or Expand of a reduced value: are the axes back where they were? Squeeze
    removes them as keepdims = 0 does."""
    row = radial.candidate.axes or tuple(range(radial.axis, radial.last + 1))
    dims, whole = ctx.types.shape(node.outputs[0]), ctx.types.shape(radial.x.root)
    restored = False
    if node.op_type == "Unsqueeze":
        restored = not radial.kept and _names_row(ctx, node, radial, row)
    elif radial.kept and expanded_as(ctx, node, radial.x.root):
        restored = True
    elif dims is not None and whole is not None:
        ones = tuple(1 if i - len(whole) in row else size for i, size in enumerate(whole))
        # Expand puts axes that are missing in front, wherever they were.
        placed = radial.kept or node.op_type != "Expand" or -radial.axis == len(whole)
        shapes = [dims]
        if node.op_type == "Expand" and (sizes := ctx.types.sizes(node.inputs[1])) is not None:
            shapes.append(sizes)  # the file may have other names for them
        restored = placed and any(same_dims(s, ones) or same_dims(s, whole) for s in shapes)
    if restored:
        ctx.set_radial(node.outputs[0], dataclasses.replace(radial, kept=True))
        return
    if node.op_type == "Squeeze" and radial.kept and _names_row(ctx, node, radial, row):
        ctx.set_radial(node.outputs[0], dataclasses.replace(radial, kept=False))
        return
    ctx.spoil(
        node, radial, "axes-misplaced",
        "the reduced axes are not certainly put back where they were",
        f"{node.op_type} {name_of(node)!r} of {ctx.describe(node.inputs[0])}",
        "use keepdims = 1, or Unsqueeze the reduced axes with constant negative axes",
    )  # fmt: skip


def expanded_as(ctx: Context, node: ir.Node, x: ir.Value) -> bool:
    """``Expand(..., Shape(x))``."""
    source = shaped_as(node.inputs[1]) if node.op_type == "Expand" else None
    return source is not None and ctx.same(source, x)


def shaped_as(sizes: ir.Value | None) -> ir.Value | None:
    """x where ``sizes`` is ``Shape(x)``, all of it."""
    node = producer_of(sizes, "Shape")
    if node is None or node.attributes.get_int("start", 0) != 0 or "end" in node.attributes:
        return None
    return node.inputs[0]


def _names_row(ctx: Context, node: ir.Node, radial: Radial, row: tuple[int, ...]) -> bool:
    """Return whether the axes of Squeeze or Unsqueeze are those of the row."""
    axes = axes_of(node, ctx.constants)
    if not axes:
        return False
    if not all(axis < 0 for axis in axes):
        rank = ctx.types.rank(radial.x.root)
        if rank is None:
            return False
        axes = tuple(axis if axis < 0 else axis - rank for axis in axes)
    return sorted(axes) == sorted(row)


def same_dims(a: Sequence[Dim], b: Sequence[Dim], *, unnamed: int = 0) -> bool:
    """Certainly equal, dimension by dimension.

    ``unnamed``: as many may be of any name: 1 of a reshaping, which keeps the number of elements.
    """
    unlike = [(x, y) for x, y in zip(a, b, strict=False) if x is None or x != y]
    return len(a) == len(b) and len(unlike) <= unnamed and not any(map(static, unlike))


def by_reference(ctx: Context, node: ir.Node) -> None:
    """A node in a function body with an attribute that the caller gives: anything may happen."""
    reason = (
        "attribute-reference", "an attribute depends on the caller of the function",
        f"{node.op_type} {name_of(node)!r}", "inline the function, or give it as a constant",
    )  # fmt: skip
    for value in node.inputs:
        fact = ctx.fact(value)
        if isinstance(fact, Radial):
            ctx.spoil(node, fact, *reason)
        elif isinstance(fact, Square) and node.op_type in ("ReduceMean", "ReduceSum"):
            candidate = ctx.candidate(node)
            radial = Radial(
                fact.x, candidate, node.graph, -1, None, True, fact.dtype, fact.dtype, spoiled=True
            )
            ctx.flaw(candidate, node, *reason)
            ctx.set_radial(node.outputs[0], radial)

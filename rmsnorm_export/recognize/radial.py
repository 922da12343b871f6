"""Transfer functions from a tensor to 1 / rms: squares, reductions, epsilon, roots, inverses."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of, rounding_of
from rmsnorm_export.recognize.context import FLOATS, Context
from rmsnorm_export.recognize.facts import Flaw, Logarithm, Radial, Square
from rmsnorm_export.recognize.numerator import in_order, multiples, shapes_of
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.shape_rules import axes_of


def square(ctx: Context, node: ir.Node, value: ir.Value, flaw: Flaw | None = None) -> None:
    """``node`` squares ``value`` (or nearly, with the reason in ``flaw``)."""
    fact = square_of(ctx, value)
    if fact is not None:
        fact.flaw = fact.flaw or flaw
        ctx.facts[node.outputs[0]] = fact


def square_of(ctx: Context, value: ir.Value) -> Square | None:
    """The square of ``value``, computed in its type; None where that is no float type."""
    dtype = ctx.types.dtype(value)
    if dtype is None:
        flaw = (
            "type-unknown", "the element type of x is unknown, so the rounding steps are",
            ctx.describe(value),
            "store types in the model (value_info); a function must be called with one type",
        )  # fmt: skip
        return Square(ctx.magnitude(value), ir.DataType.UNDEFINED, flaw=flaw)
    return Square(ctx.magnitude(value), dtype) if dtype in FLOATS else None


def square_of_product(ctx: Context, a: ir.Value, b: ir.Value) -> Square | None:
    """``a * b``, where one is certainly a constant multiple of the other."""
    if ctx.same(a, b):
        return square_of(ctx, a)
    pair, fact = multiples(ctx, a, b), square_of(ctx, a)
    if pair is None or fact is None:
        return None
    left, right = pair
    return dataclasses.replace(
        fact, x=left.view, factor=left.factor * right.factor, slack=left.slack + right.slack,
        narrow=(*left.narrow, *right.narrow),
    )  # fmt: skip


def power(ctx: Context, node: ir.Node) -> None:
    """Pow: a square, or a root or inverse of what is already known."""
    base, exponent = node.inputs[0], node.inputs[1]
    if base is None or exponent is None:
        return
    array, number = ctx.constants.array(exponent), ctx.constants.scalar(exponent)
    fact = ctx.facts.get(base) or (ctx.rows.get(base) if number in (0.5, -0.5) else None)
    if isinstance(ctx.facts.get(exponent), Radial | Logarithm):
        return
    if isinstance(fact, Radial):
        fits = array is not None and ctx.fits(array.ndim, fact)
        _power_of_mean(ctx, node, fact, number if fits else None)
        return
    rank = 0 if array is None else array.ndim
    flaw: Flaw | None = None
    if number is None:
        number = _of_a_row(ctx, exponent, base)
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
        square(ctx, node, base, flaw)


def _power_of_mean(ctx: Context, node: ir.Node, radial: Radial, number: float | None) -> None:
    """Pow of what is known, with this exponent, or with one that is no constant scalar."""
    if number == 2.0:
        root_squared(ctx, node, radial)
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


def _of_a_row(ctx: Context, value: ir.Value, base: ir.Value) -> float | None:
    """The number that a constant of the trailing dimensions of ``base`` repeats."""
    array, dims = ctx.constants.repeated(value), ctx.types.shape(base)
    if array is None or dims is None or not 0 < array.ndim <= len(dims):
        return None
    return float(array.flat[0]) if same_dims(array.shape, dims[-array.ndim :]) else None


def root_squared(ctx: Context, node: ir.Node, radial: Radial) -> None:
    """The square of ``c * sqrt(inner)``, as after ReduceL2."""
    if not radial.rooted or radial.inverse or radial.d:
        ctx.spoil(
            node, radial, "power-of-mean-square", "the mean square is squared again",
            name_of(node), "an RMSNorm divides by the square root of the mean square, once",
        )  # fmt: skip
        return
    a, b = radial.a * radial.c**2, radial.b * radial.c**2
    step = dataclasses.replace(radial, rooted=False, a=a, b=b, c=1.0, plain=False)
    ctx.set_radial(node.outputs[0], step)


def centred(ctx: Context, root: ir.Value) -> ir.Node | None:
    """The node that takes the mean of its row from ``root``, if one does."""
    node = producer_of(root, "Sub")
    if node is None or None in node.inputs:
        return None
    row, mean = (ctx.view(v).root for v in node.inputs if v is not None)
    maker = producer_of(mean, "ReduceMean")
    if maker is None or maker.inputs[0] is None:
        return None
    return node if ctx.view(maker.inputs[0]).root is row else None


def quantize(ctx: Context, node: ir.Node) -> None:
    """QuantizeLinear, DequantizeLinear: a rounding that no operator repeats inside a norm."""
    fact = ctx.fact(node.inputs[0])
    if isinstance(fact, Radial):
        ctx.spoil(node, fact, *quantized(node))
    elif isinstance(fact, Square):
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, flaw=fact.flaw or quantized(node))


def quantized(node: ir.Node) -> Flaw:
    """The flaw of a norm that is quantized on the way."""
    return (
        "quantized", "the norm is quantized on the way from the row to its output",
        f"{node.op_type} {name_of(node)!r}",
        "optimize first and quantize then, or omit the operators of the norm from it",
    )  # fmt: skip


def logarithm(ctx: Context, node: ir.Node) -> None:
    """Log: of what is known, or of its absolute value."""
    fact, inner = ctx.fact(node.inputs[0]), producer_of(node.inputs[0], "Abs")
    if isinstance(fact, Square | Radial):
        ctx.facts[node.outputs[0]] = Logarithm(fact)
    elif inner is not None and inner.inputs[0] is not None:
        squared = square_of(ctx, inner.inputs[0])
        if squared is not None:
            ctx.facts[node.outputs[0]] = Logarithm(squared, 0.5)


def exponential(ctx: Context, node: ir.Node) -> None:
    """Exp of a logarithm: a power."""
    fact = ctx.fact(node.inputs[0])
    if not isinstance(fact, Logarithm):
        return
    base = dataclasses.replace(fact.of, narrow=(*fact.of.narrow, "a power by Exp and Log"))
    if isinstance(base, Radial) and fact.power != 1.0:
        _power_of_mean(ctx, node, base, fact.power)
    elif isinstance(base, Radial):
        ctx.set_radial(node.outputs[0], base)
    elif fact.power == 1.0:
        ctx.facts[node.outputs[0]] = base


def not_followed(ctx: Context, node: ir.Node) -> None:
    """What is computed of one mean square and constants, where there is no rule for it: a norm, as
    far as the file tells, if it divides x."""
    facts = [ctx.facts[v] for v in node.inputs if v is not None and v in ctx.facts]
    if not facts or node.outputs[0] in ctx.rows or node.op_type.startswith("Reduce"):
        return
    bases = [fact.of if isinstance(fact, Logarithm) else fact for fact in facts]
    radials = [base for base in bases if isinstance(base, Radial)]
    others = [v for v in node.inputs if v is not None and v not in ctx.facts]
    alone = len(radials) == len(facts) and len({radial.candidate for radial in radials}) == 1
    floats = ctx.types.dtype(node.outputs[0]) in (*FLOATS, ir.DataType.BOOL)
    if alone and floats and all(ctx.constants.array(v) is not None for v in others):
        step = dataclasses.replace(radials[0], rooted=True, beyond=radials[0].beyond or node)
        ctx.set_radial(node.outputs[0], step)


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
            node, radial, "second-root", "a second root or inverse is taken", name_of(node),
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


def inverse_of(ctx: Context, node: ir.Node, radial: Radial, numerator: float) -> None:
    """``numerator / radial``."""
    if radial.inverse or numerator == 0:
        ctx.spoil(
            node, radial, "second-inverse", "the inverse is inverted again", name_of(node),
            "divide x by the root, or multiply with its inverse",
        )  # fmt: skip
        return
    plain = radial.plain and node.op_type != "Pow" and numerator == 1.0
    step = dataclasses.replace(
        radial, inverse=True, m=numerator, plain=plain, multiplied=numerator != 1.0
    )
    ctx.set_radial(node.outputs[0], step)


def times(ctx: Context, inverse: Radial, constant: ir.Value | None, factor: float) -> Radial:
    """``factor / rms``, where ``constant`` is that number, or what was divided by."""
    array = ctx.constants.array(constant)
    slack = inverse.slack + (0.0 if array is None else rounding_of(array))
    multiplied = inverse.multiplied or factor != 1.0
    return dataclasses.replace(
        inverse, m=inverse.m * factor, slack=slack, plain=False, multiplied=multiplied
    )


def subtract(ctx: Context, node: ir.Node) -> None:
    """Sub with a mean square: a variance, or a negative epsilon, but no RMSNorm."""
    for value in node.inputs:
        fact = ctx.fact(value)
        if isinstance(fact, Radial):
            ctx.spoil(
                node, fact, "subtraction", "something is subtracted from the mean square, or it "
                "from something", " - ".join(ctx.describe(v) for v in node.inputs),
                "an RMSNorm adds epsilon, nothing else; a variance is LayerNormalization's",
            )  # fmt: skip
            return


def add_epsilon(ctx: Context, node: ir.Node, radial: Radial, *others: ir.Value) -> None:
    """``radial`` plus ``others``: an epsilon, or a reason."""
    candidate = radial.candidate
    spoiled = radial.spoiled
    arrays = [ctx.constants.array(other) for other in others]
    numbers = [ctx.constants.scalar(other) for other in others]
    number = sum(number or 0.0 for number in numbers)
    ranks = [array.ndim for array in arrays if array is not None]
    parts = any(isinstance(ctx.facts.get(other), Radial) for other in others)
    if parts:
        spoiled = True
        ctx.flaw(
            candidate, node, "sum-of-parts", "the squares of several tensors are summed and added",
            " + ".join(ctx.describe(value) for value in node.inputs),
            "square the whole row, which is divided, and take its mean",
        )  # fmt: skip
    elif None in numbers:
        spoiled = True
        at = numbers.index(None)
        other, array = others[at], arrays[at]
        ctx.flaw(
            candidate, node, "epsilon-not-constant", "epsilon is not a constant scalar",
            ctx.describe(other) if array is None else f"{array.size} elements in {other.name!r}",
            "make epsilon a constant; an initializer must not be a graph input as well",
        )  # fmt: skip
    elif not ctx.fits(max(ranks), radial):
        spoiled = True
        ctx.flaw(
            candidate, node, "epsilon-rank", "epsilon may have a higher rank than the mean square",
            f"epsilon of rank {max(ranks)}", "store epsilon as a scalar",
        )  # fmt: skip
    if number < 0:
        spoiled = True
        ctx.flaw(
            candidate, node, "epsilon-negative", "epsilon is negative", f"epsilon {number}",
            "use an epsilon >= 0",
        )  # fmt: skip
    if radial.epsilons:
        spoiled = True
        ctx.flaw(
            candidate, node, "two-epsilons", "a second epsilon is added",
            f"{number} in {name_of(node)!r}", "add one epsilon, inside or outside the root",
        )  # fmt: skip
    if radial.inverse:
        ctx.spoil(
            node, radial, "epsilon-after-inverse", "a number is added to 1 / rms",
            f"{number} in {name_of(node)!r}", "add epsilon before the inverse",
        )  # fmt: skip
        return
    step = dataclasses.replace(radial, epsilons=radial.epsilons + 1, spoiled=spoiled)
    if radial.rooted:
        step.d += number
    else:
        step.b += number
    ctx.set_radial(node.outputs[0], step)


def clamp(ctx: Context, node: ir.Node) -> None:
    """Max, Min, Clip, Relu on a mean square or root: a constant floor is an epsilon, or changes
    nothing."""
    for value in node.inputs:
        fact = ctx.fact(value)
        if value is None or not isinstance(fact, Radial):
            continue
        limits = _limits(ctx, node, value)
        least, most, rank = limits or (math.nan, math.nan, 0)
        low, high = _range(ctx, fact)
        largest = _largest(ctx.types.dtype(value))
        kept = least <= low * (1 + _SAME)
        some = least >= 0 or least <= -largest
        whole = most >= min(high, largest) and some and (kept or not fact.inverse)
        if not whole or not ctx.fits(rank, fact):
            ctx.spoil(
                node, fact, "clamped", "the mean square or root is clamped otherwise than from "
                "below, by a constant", f"{node.op_type} {name_of(node)!r}, "
                + " and ".join(ctx.describe(v) for v in node.inputs if v not in (value, None)),
                "take the maximum with one constant >= 0, or add epsilon",
            )  # fmt: skip
        elif fact.epsilons and not fact.floor and not kept:
            ctx.spoil(
                node, fact, "two-epsilons", "the mean square has an epsilon already",
                f"{least} in {name_of(node)!r}", "add one epsilon, or take one maximum",
            )  # fmt: skip
        else:
            step = dataclasses.replace(fact)
            if most < high:
                edge = f"a {node.op_type} that takes an infinite root to the largest number"
                step.edges = (*fact.edges, edge)
            if not kept:
                step.floor, step.epsilons = least, 1
            step.length = 2 if fact.length and node.op_type == "Clip" else fact.length
            ctx.set_radial(node.outputs[0], step)
        return


_SAME = 2.0**-23
"""How far a floor may be above what it is known to be under: a rounding of float32."""


def _limits(ctx: Context, node: ir.Node, value: ir.Value) -> tuple[float, float, int] | None:
    """The constants between which ``value`` is clamped, and their largest rank; None: others."""
    ends, ranks, dtype = {"min": -math.inf, "max": math.inf}, [0], ctx.types.dtype(value)
    constants: list[tuple[str, ir.Value | None]] = []
    if node.op_type == "Relu":
        ends["min"] = 0.0
    elif node.op_type != "Clip":
        end = "min" if node.op_type == "Max" else "max"
        constants = [(end, other) for other in node.inputs if other is not value]
    elif node.inputs[0] is value:
        pairs = zip(ends, node.inputs[1:], strict=False)
        constants = [(end, other) for end, other in pairs if other is not None]
        ends |= {end: node.attributes.get_float(end, most) for end, most in ends.items()}
    else:
        return None
    for end, constant in constants:
        array = ctx.constants.array(constant)
        number = math.nan if array is None or array.size != 1 else float(array.reshape(-1)[0])
        if array is None or math.isnan(number):
            return None
        ends[end] = max(ends[end], number) if end == "min" else min(ends[end], number)
        ranks.append(array.ndim)
    if dtype == ir.DataType.FLOAT16 and ends["max"] < math.inf:
        return None  # squares of ordinary rows are that large
    if node.op_type == "Clip" and "max" not in (*node.attributes, *(end for end, _ in constants)):
        ends["max"] = _largest(dtype)
    return ends["min"], ends["max"], max(ranks)


def _largest(dtype: ir.DataType | None) -> float:
    """The largest number of a float type."""
    if dtype is None or dtype not in FLOATS:
        return math.inf
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]


def _range(ctx: Context, radial: Radial) -> tuple[float, float]:
    """Bounds of a mean square, its root or their inverse: what is added, and the type of x."""
    if min(radial.a, radial.c, radial.m) <= 0 or radial.b < 0:
        return -math.inf, math.inf
    largest = _largest(ctx.types.dtype(radial.x.root))
    top = largest * largest
    ends = [radial.b, radial.a * top + radial.b if top < _largest(radial.stash) else math.inf]
    if radial.rooted:
        ends = [radial.c * math.sqrt(end) + radial.d for end in ends]
    low, high = max(ends[0], radial.floor), ends[1]
    if radial.inverse:
        return radial.m / high, radial.m / low if low > 0 else math.inf
    return low, high


def restore_axes(ctx: Context, node: ir.Node, radial: Radial) -> None:
    """Unsqueeze, Reshape or Expand of a reduced value: are the axes back where they were?"""
    row = radial.candidate.axes or tuple(range(radial.axis, radial.last + 1))
    dims, whole = ctx.types.shape(node.outputs[0]), ctx.types.shape(radial.x.root)
    restored = False
    if node.op_type == "Unsqueeze":
        restored = not radial.kept and _unsqueezed(ctx, node, radial, row)
    elif radial.kept and expanded_as(ctx, node, radial.x.root):
        restored = True
    elif dims is not None and whole is not None:
        ones = tuple(1 if i - len(whole) in row else size for i, size in enumerate(whole))
        # Expand puts axes that are missing in front, wherever they were.
        placed = radial.kept or node.op_type != "Expand" or -radial.axis == len(whole)
        restored = placed and (same_dims(dims, ones) or same_dims(dims, whole))
    if restored:
        ctx.set_radial(node.outputs[0], dataclasses.replace(radial, kept=True))
        return
    other = _in_earlier_shape(ctx, node, radial)
    if other is not None:
        ctx.set_radial(node.outputs[0], other)
        return
    ctx.spoil(
        node, radial, "axes-misplaced",
        "the reduced axes are not certainly put back where they were",
        f"{node.op_type} {name_of(node)!r} of {ctx.describe(node.inputs[0])}",
        "use keepdims = 1, or Unsqueeze the reduced axes with constant negative axes",
    )  # fmt: skip


def _in_earlier_shape(ctx: Context, node: ir.Node, radial: Radial) -> Radial | None:
    """The mean square of the same rows, in the shape that x had before it was reshaped."""
    dims, shapes = ctx.types.shape(node.outputs[0]), shapes_of(ctx, radial.x.root)
    if node.op_type == "Expand" or radial.axis != -1 or dims is None or not radial.size:
        return None
    for position, source in enumerate(shapes[1:], 1):
        whole = ctx.types.shape(source)
        if not whole or whole[-1] != radial.size or not in_order(ctx, shapes[: position + 1]):
            continue
        kept = same_dims(dims, (*whole[:-1], 1))
        if kept or same_dims(dims, whole[:-1]):
            return dataclasses.replace(radial, x=ctx.view(source), kept=kept)
    return None


def expanded_as(ctx: Context, node: ir.Node, x: ir.Value) -> bool:
    """``Expand(..., Shape(x))``."""
    shape = producer_of(node.inputs[1], "Shape") if node.op_type == "Expand" else None
    if shape is None or shape.inputs[0] is None:
        return False
    return not shape.attributes.keys() & {"start", "end"} and ctx.same(shape.inputs[0], x)


def _unsqueezed(ctx: Context, node: ir.Node, radial: Radial, row: tuple[int, ...]) -> bool:
    axes = axes_of(node, ctx.constants)
    if not axes:
        return False
    if not all(axis < 0 for axis in axes):
        rank = ctx.types.rank(radial.x.root)
        if rank is None:
            return False
        axes = tuple(axis if axis < 0 else axis - rank for axis in axes)
    return sorted(axes) == sorted(row)


def same_dims(a: tuple[int | str | None, ...], b: tuple[int | str | None, ...]) -> bool:
    """Certainly equal, dimension by dimension."""
    return len(a) == len(b) and all(x is not None and x == y for x, y in zip(a, b, strict=True))


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

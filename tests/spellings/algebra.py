"""RMSNorms by algebra, and beside each what is none: one step of the ordinary chain by other
operators.

A row is a name, the steps that it has of its own (see ``Alike.chain``), and what is true of it. A
step takes what it works with and the value before it; those of a look-alike have a reason for which
nothing is fused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from .alike import FLOAT, Alike, LookAlike, Steps, chain_of
from .case import Case
from .steps import VALUE, Step, epsilon, mean, op, reduced, same, then, total

N, EPSILON = 8, 1e-5
ROOT = math.sqrt(N)


def built(steps: Steps, dtype: int = FLOAT) -> Case:
    """The ordinary norm of rows of eight with these steps in place of its own."""
    body = chain_of(steps)
    return LookAlike("algebra", body, 0, 1, refusal=False, opsets=(18,), dtype=dtype).build()


def times(k: float) -> Step:
    return op("Mul", k)


def over(k: float) -> Step:
    return op("Div", k)


def product(left: Step, right: Step) -> Step:
    return lambda a, x: a.g.op("Mul", left(a, x), right(a, x))


def einsum(equation: str, left: Step, right: Step) -> Step:
    """A product of two multiples of x."""
    return lambda a, x: a.g.op("Einsum", left(a, x), right(a, x), equation=equation)


def unsqueezed(a: Alike, x: str) -> str:
    return a.g.unsqueeze(x, [-1])


def dot(equation: str, *operands: Any) -> Step:
    """An Einsum of the value and of these operands, whose last axis is put back."""
    return then(op("Einsum", *operands, equation=equation), unsqueezed)


def squeezed(a: Alike, x: str) -> str:
    return a.g.op("Squeeze", x, a.g.ints(-1))


def row_times_column(column: Step) -> Step:
    """[..., 1, n] times [..., n, 1], without the last axis."""
    return lambda a, x: squeezed(a, a.g.op("MatMul", a.g.unsqueeze(x, [-2]), column(a, x)))


def turned(a: Alike, x: str) -> str:
    return a.g.op("Transpose", a.g.unsqueeze(x, [-2]), perm=[0, 1, 3, 2])


def counted(*sizes: Callable[[Alike, str], str], wide: bool = False) -> Step:
    """A sum over the product of sizes that the graph computes, in float64 where ``wide``."""

    def step(a: Alike, x: str) -> str:
        count = a.g.op("ReduceProd", functools.reduce(lambda v, s: s(a, v), sizes, x), keepdims=0)
        if not wide:
            return a.g.op("Div", total(a, x), a.g.cast(count, a.dtype))
        double = a.g.cast(total(a, x), TensorProto.DOUBLE)
        quotient = a.g.op("Div", double, a.g.cast(count, TensorProto.DOUBLE))
        return a.g.cast(quotient, a.dtype)

    return step


def gathered(*positions: int) -> Step:
    return lambda a, x: a.g.op("Gather", x, a.g.ints(*positions))


def without_its_axis(then_back: Step) -> Step:
    """A mean whose axis is squeezed out, and put back after other steps."""
    return then(mean, squeezed, then_back, unsqueezed)


def typed_as(value: float, op_type: str) -> Step:
    """An operator of a number that is cast to the type of its operand."""
    return lambda a, x: a.g.op(op_type, x, a.g.op("CastLike", a.scalar(value), x))


def over_its_size(a: Alike, x: str) -> str:
    """The sum over the last size of the shape, in 32 bits until it is a float."""
    sizes = a.g.cast(a.g.op("Shape", x), TensorProto.INT32)
    size = a.g.op("Squeeze", sliced(a, sizes), a.g.ints(0))
    return a.g.op("Div", total(a, x), a.g.cast(size, a.dtype))


def over_the_size_of_a_row(a: Alike, x: str) -> str:
    return a.g.op("Div", total(a, x), a.g.cast(a.g.op("Size", a.weight()), a.dtype))


def over_ones(of: Step) -> Step:
    """The sum over that of ones in the shape of a value."""

    def step(a: Alike, x: str) -> str:
        ones = a.g.op("Expand", a.scalar(1), a.g.op("Shape", of(a, x)))
        return a.g.op("Div", total(a, x), total(a, ones))

    return step


def all_of_it(a: Alike, x: str) -> str:
    """The Slice of a strided slice without bounds, as TensorFlow's converter writes it."""
    ints = (a.g.const(np.array(pair, np.int32)) for pair in ([0, 0], [10**9] * 2, [0, 2], [1, 1]))
    return a.g.op("Slice", x, *ints)


def limited(bound: float, by: str = "Min") -> Step:
    """The row times its inverse root, which is so large at most, or with ``Max`` at least."""
    return then(op("Reciprocal"), op(by, bound), lambda a, x: a.g.op("Mul", a.x, x))


def sliced(a: Alike, x: str) -> str:
    return a.g.op("Slice", x, a.g.ints(-1), a.g.ints(2**31 - 1))


def with_variance(square_of_mean: Callable[[Alike, str, str], str]) -> Steps:
    """A variance and what is added to it, given the row and its mean."""

    def step(a: Alike, x: str) -> str:
        average = a.mean(x)
        variance = a.mean(a.square(a.g.op("Sub", x, average)))
        return a.g.op("Add", variance, square_of_mean(a, x, average))

    return {"square": same, "mean": step}


def logarithm(power: float) -> Step:
    return then(op("Log"), op("Mul", power), op("Exp"))


def numbers(*shape: int) -> Callable[[Alike], str]:
    """What makes a sum a mean."""
    return lambda a: a.scalar(1 / N, shape)


SUMMED: Steps = {"square": same}
NORMS: dict[str, Steps] = {
    "epsilon by a Sum": {"stabilise": op("Sum", EPSILON)},
    "a product of sizes": {"mean": counted(op("Shape"), gathered(-1))},
    "a product of sizes, in float64": {"mean": counted(op("Shape"), gathered(-1), wide=True)},
    "an axis that is squeezed out": {"mean": without_its_axis(same)},
    "an epsilon without an axis": {"mean": without_its_axis(epsilon), "stabilise": same},
    "numbers of the type of the mean": {
        "mean": then(total, typed_as(N, "Div")), "stabilise": typed_as(EPSILON, "Add"),
    },
    "a size in 32 bits": {"mean": over_its_size},
    "the size of the weight": {"mean": over_the_size_of_a_row},
    "a sum of ones": {"mean": over_ones(same)},
    "the square of a magnitude": {"square": then(op("Abs"), op("Pow", 2.0))},
    "a slice of all": {"root": then(op("Sqrt"), all_of_it)},
    "a product of a part of the shape": {"mean": counted(op("Shape"), sliced)},
    "clipped at 0 and infinity": {"stabilise": then(epsilon, op("Clip", 0.0, math.inf))},
    "clipped before epsilon": {"mean": then(mean, op("Clip", 0.0, math.inf))},
    "a maximum with less": {"stabilise": then(epsilon, op("Max", 1e-6, 0.0))},
    "a maximum with epsilon": {"stabilise": then(epsilon, op("Max", EPSILON))},
    "a minimum with infinity": {"root": then(op("Sqrt"), op("Min", math.inf))},
    "a Relu": {"stabilise": then(epsilon, op("Relu"))},
    "one maximum after another": {
        "stabilise": op("Max", 1e-7), "root": then(op("Max", 1e-6), op("Sqrt")),
    },
    "an inverse that is limited": {"stabilise": same, "divide": limited(100.0)},
    "an inverse that is limited by what it never is": {"divide": limited(1e4)},
}  # fmt: skip
"""Recognised by default in float32, and in any float type with the class ``upcast``."""

UPCAST: dict[str, Steps] = {
    "a root by logarithms": {"root": logarithm(0.5)},
    "a sum by its logarithm": {"mean": then(reduced("ReduceLogSum"), op("Exp"), over(N))},
}
"""Fused by what they compute, with the class ``upcast`` where sums of logarithms lose digits."""


SWAPPED = op("Transpose", perm=[0, 2, 1])


def parts(a: Alike, x: str) -> str:
    """The sums of the squares of two halves of a row, added."""
    first, second = a.g.ops("Split", x, count=2, axis=-1, num_outputs=2)
    return a.g.op("Add", *(total(a, a.square(part)) for part in (first, second)))


def parts_of_squares(a: Alike, x: str) -> str:
    """The same, the squares taken before the row is cut."""
    first, second = a.g.ops("Split", a.square(x), count=2, axis=-1, num_outputs=2)
    return a.g.op("Add", total(a, first), total(a, second))


def joined_squares(a: Alike, x: str) -> str:
    """The sum of the squares of two halves of a row, side by side."""
    halves = a.g.ops("Split", x, count=2, axis=-1, num_outputs=2)
    return total(a, a.g.op("Concat", *map(a.square, halves), axis=-1))


BY_BEHAVIOUR: dict[str, Steps] = {
    "two numbers by a Sum": {"stabilise": op("Sum", EPSILON, EPSILON)},
    "epsilon in the squares": {"square": then(op("Pow", 2.0), epsilon), "stabilise": same},
    "a vector of epsilon in the squares": {
        "square": then(op("Pow", 2.0), lambda a, x: a.g.op("Add", x, a.scalar(EPSILON, (1,)))),
        "stabilise": same,
    },
    "x times x over n": {"square": product(same, over(N)), "mean": total},
    "x over n, times x": {"square": product(times(1 / N), same), "mean": total},
    "x over the root of n": {"square": then(over(ROOT), op("Pow", 2.0)), "mean": total},
    "a multiple twice": {"square": product(over(ROOT), over(ROOT)), "mean": total},
    "the squares of a multiple": {**SUMMED, "mean": then(over(ROOT), reduced("ReduceSumSquare"))},
    "smaller, and larger again": {
        "square": then(over(4), op("Pow", 2.0)), "root": then(op("Sqrt"), times(4)),
    },
    "magnitudes": {"square": product(op("Abs"), op("Abs"))},
    "negatives": {"square": product(op("Neg"), op("Neg"))},
    "minus x times minus x": {"square": then(product(op("Neg"), same), op("Neg"))},
    "a sum of magnitudes": {"mean": then(reduced("ReduceL1"), over(N))},
    "a product by Einsum": {"square": einsum("bsd,bsd->bsd", same, op("Identity"))},
    "a sum by Einsum": {"mean": then(dot("bsd->bs"), over(N))},
    "a dot product by Einsum": {
        **SUMMED, "mean": then(einsum("...d, ...d -> ...", over(N), same), unsqueezed)},
    "a mean by Einsum": {"mean": dot("bsd,d->bs", numbers(N))},
    "numbers and squares by Einsum": {"mean": dot("d,bsd->bs", numbers(N), VALUE)},
    "squares of which the sum has ones by Einsum": {
        **SUMMED, "mean": dot("bsd,bsd,d->bs", VALUE, VALUE, numbers(N))},
    "squares times a column by Einsum": {
        "mean": op("Einsum", numbers(N, 1), equation="bsd,de->bse")},
    "a column times squares by Einsum": {
        "mean": op("Einsum", numbers(1, N), VALUE, equation="ed,bsd->bse")},
    "labels that stand once": {"mean": dot("bsd,d", numbers(N))},
    "a sum of magnitudes below zero": {"mean": then(op("Neg"), reduced("ReduceL1"), over(N))},
    "a row times a column": {**SUMMED, "mean": then(row_times_column(unsqueezed), over(N))},
    "a row times itself turned": {**SUMMED, "mean": then(row_times_column(turned), over(N))},
    "a row times a multiple": {**SUMMED, "mean": row_times_column(then(over(N), unsqueezed))},
    "a pool": {
        **SUMMED, "mean": then(op("LpPool", kernel_shape=[N], p=2), over(ROOT)), "root": same,
    },
    "a variance and the square of a mean": with_variance(lambda a, _, average: a.square(average)),
    "magnitudes of what is not negative": {
        "mean": then(op("Abs"), mean, op("Abs")), "root": then(op("Sqrt"), op("Abs")),
    },
    "parts": {**SUMMED, "mean": then(parts, over(N))},
    "parts of squares": {**SUMMED, "mean": then(parts_of_squares, over(N))},
    "squares of parts": {**SUMMED, "mean": then(joined_squares, over(N))},
    "squares that are transposed": {"mean": then(SWAPPED, reduced("ReduceMean", [1]), SWAPPED)},
}  # fmt: skip
"""Fused by what they compute: in float32 and float64 by default, in half types with ``upcast``."""


def another(a: Alike, _: str) -> str:
    return a.input("z")


def summed_as(*steps: Step) -> Steps:
    """A step in place of the square and its mean, of which any number may come."""
    return {"square": same, "mean": then(*steps), "root": then(op("Abs"), op("Sqrt"))}


def squared_as(step: Step) -> Steps:
    return {"square": step, "root": then(op("Abs"), op("Sqrt"))}


def with_log_sum_exp(a: Alike, x: str) -> str:
    logarithms = times(2)(a, op("Log")(a, op("Abs")(a, x)))
    return op("Exp")(a, a.g.reduce("ReduceLogSumExp", logarithms, [-1], 1))


def gram(a: Alike, x: str) -> str:
    return a.g.op("MatMul", x, SWAPPED(a, x))


UNLIKE: dict[str, Steps] = {
    "a Sum with x": {"stabilise": op("Sum", EPSILON, Alike.input)},
    "a Softplus": {"root": op("Softplus")},
    "x times its magnitude": squared_as(product(same, op("Abs"))),
    "x times another row": squared_as(product(same, another)),
    "x times a weighted x": squared_as(product(same, op("Mul", Alike.weight))),
    "its dot product with its magnitude": summed_as(
        einsum("bsd,bsd->bs", same, op("Abs")), unsqueezed),
    "its dot product with another row": summed_as(
        einsum("bsd,bsd->bs", same, another), unsqueezed),
    "rows that change places": {
        "row": lambda a: a.input(shape=(3, 3, N)), **summed_as(dot("bsd,bsd->sb", VALUE, VALUE))},
    "a row times another column": summed_as(row_times_column(then(another, unsqueezed))),
    "all rows times all columns": {
        "row": lambda a: a.input(shape=(2, N, N)), **summed_as(gram)},
    "a weighted sum by Einsum": {"mean": dot("bsd,d->bs", Alike.weight)},
    "rows of one and more numbers by Einsum": {
        "row": lambda a: a.input(shape=(2, 3, 1)),
        "mean": dot("bsd,d->bs", lambda a: a.scalar(1, (4,)))},
    "three times x by Einsum": summed_as(dot("bsd,bsd,bsd->bs", VALUE, VALUE, VALUE)),
    "a weighted product by Einsum": summed_as(dot("bsd,d,bsd->bs", VALUE, Alike.weight, VALUE)),
    "a column of weights by Einsum": {
        "mean": op("Einsum", lambda a: a.weight((N, 1)), equation="bsd,de->bse")},
    "a layer behind the squares by Einsum": {
        "mean": then(op("Einsum", lambda a: a.weight((N, 3)), equation="bsd,de->bse"), mean)},
    "sums along the row": {"mean": then(op("CumSum", lambda a: a.g.const(np.array(-1))), mean)},
    "squares whose labels all stand once": {"mean": then(op("Einsum", equation="abc"), over(N))},
    "another root by logarithms": {"root": logarithm(0.25)},
}  # fmt: skip
"""Nothing of them is fused, and they do not look like a norm."""

LEFT_ALONE: dict[str, tuple[Steps, str | None]] = {
    **{name: (steps, None) for name, steps in UNLIKE.items()},
    "logarithms of which the sum is taken": (
        {**SUMMED, "mean": then(with_log_sum_exp, over(N))}, "spelling-unknown",
    ),
    "a larger maximum": ({"stabilise": then(epsilon, op("Max", 1e-3))}, "two-epsilons"),
    "an inverse that is limited beside an epsilon": ({"divide": limited(100.0)}, "two-epsilons"),
    "an inverse that is limited from below": (
        {"stabilise": same, "divide": limited(1.0, "Max")}, "clamped",
    ),
    "a minimum": ({"stabilise": then(epsilon, op("Min", 1.0))}, "clamped"),
    "clipped at a number": ({"root": then(op("Sqrt"), op("Clip", 0.0, 1.0))}, "clamped"),
    "clipped at an input": (
        {"stabilise": then(epsilon, op("Min", lambda a: a.input("z", (1,))))}, "clamped",
    ),
    "a variance and a mean": (
        with_variance(lambda a, _, average: a.g.op("Abs", average)), "variance",
    ),
    "a variance and the square of another mean": (
        with_variance(lambda a, x, _: a.square(a.mean(a.g.op("Abs", x)))), "variance",
    ),
    "a sum of the ones of more rows": (
        {"row": lambda a: a.input(shape=(1, 3, N)),
         "mean": over_ones(lambda a, _: a.input("z", (2, 3, N)))}, "count-not-constant",
    ),
    "sizes of other axes": ({"mean": counted(op("Shape"), gathered(1))}, "not-the-mean"),
}  # fmt: skip
"""Nothing of them is fused, and the reason."""

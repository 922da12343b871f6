"""Look-alikes by their constants: epsilon, exponent, axes, counts, casts."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from .alike import FLOAT, FLOAT16, Alike, look_alike

DOUBLE, INT32 = TensorProto.DOUBLE, TensorProto.INT32

# epsilon


@look_alike()
def epsilon_is_graph_input(a: Alike) -> str:
    epsilon = a.input("epsilon", values=np.array(0.25))
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, epsilon))


@look_alike()
def epsilon_is_overridable(a: Alike) -> str:
    """An initializer that is a graph input too is only a default: the feed wins."""
    epsilon = a.input("epsilon", values=np.array(0.25))
    a.g.initializers.append(numpy_helper.from_array(np.array(1e-5, np.float32), epsilon))
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, epsilon))


@look_alike()
def epsilon_differs_by_token(a: Alike) -> str:
    epsilon = a.g.const(np.array([[1e-5], [0.5], [2.0]], np.float32))
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, epsilon))


@look_alike()
def epsilon_differs_by_channel(a: Alike) -> str:
    epsilon = a.g.const(np.linspace(0.1, 1, 8, dtype=np.float32))
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, epsilon))


@look_alike()
def epsilon_of_higher_rank(a: Alike) -> str:
    """[2, 3, 1] + [1, 1, 1, 1] has rank 4, and so has everything behind it."""
    epsilon = a.scalar(1e-5, (1, 1, 1, 1))
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, epsilon))


@look_alike()
def epsilon_negative(a: Alike) -> str:
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, a.scalar(-1e-2)))


@look_alike()
def epsilon_infinite(a: Alike) -> str:
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, a.scalar(np.inf)))


@look_alike()
def epsilon_nan(a: Alike) -> str:
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Add", v, a.scalar(np.nan)))


@look_alike()
def epsilon_subtracted(a: Alike) -> str:
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Sub", v, a.scalar(1e-2)))


@look_alike()
def epsilon_minus_mean(a: Alike) -> str:
    return a.chain(a.input(), stabilise=lambda v: a.g.op("Sub", a.scalar(9.0), v))


@look_alike(most=1)
def epsilon_twice_inside(a: Alike) -> str:
    """Adds up to one epsilon: a norm for who wants to see it."""
    x = a.input()
    return a.chain(x, stabilise=lambda v: a.stabilise(a.g.op("Add", v, a.scalar(0.5))))


@look_alike()
def epsilon_inside_and_outside(a: Alike) -> str:
    x = a.input()
    return a.chain(x, root=lambda v: a.g.op("Add", a.g.op("Sqrt", v), a.scalar(0.5)))


@look_alike()
def epsilon_by_max_of_an_input(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: a.g.op("Max", a.root(v), a.input(shape=())))


@look_alike()
def epsilon_by_max_of_a_vector(a: Alike) -> str:
    bound = a.g.const(np.linspace(0.1, 1.0, 8).astype(np.float32))
    return a.chain(a.input(), root=lambda v: a.g.op("Max", a.root(v), bound))


@look_alike()
def epsilon_by_max_of_the_inverse(a: Alike) -> str:
    x = a.input()
    return a.chain(
        x,
        root=lambda v: a.g.op("Max", a.g.op("Reciprocal", a.root(v)), a.scalar(0.5)),
        divide=lambda v: a.g.op("Mul", x, v),
    )


@look_alike()
def epsilon_by_min(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: a.g.op("Min", a.root(v), a.scalar(0.5)))


@look_alike()
def epsilon_from_data(a: Alike) -> str:
    x = a.input()
    return a.chain(x, stabilise=lambda v: a.g.op("Add", v, a.g.op("Abs", x)))


@look_alike(most=1, dtype=DOUBLE)
def epsilon_below_float32(a: Alike) -> str:
    """1e-60 keeps a row of zeros at zero; as a float32 attribute it would be 0, and the row NaN."""
    values = a.rng.standard_normal((2, 3, 8)) * [[[1.0], [0.0], [1e-31]]]
    return a.chain(a.input(values=values), stabilise=lambda v: a.g.op("Add", v, a.scalar(1e-60)))


@look_alike(norms=1, dtype=DOUBLE)
def epsilon_not_a_float32(a: Alike) -> str:
    """In float64 the difference between 1e-5 and float32(1e-5) shows where epsilon rules."""
    return a.chain(a.input(values=a.rng.standard_normal((2, 3, 8)) * 1e-4))


@look_alike(norms=1)
def epsilon_is_the_exponent(a: Alike) -> str:
    """One initializer is the exponent and the epsilon."""
    two = a.g.scalar(2.0, FLOAT)
    return a.chain(
        a.input(),
        square=lambda v: a.g.op("Pow", v, two),
        stabilise=lambda v: a.g.op("Add", two, v),
    )


@look_alike(most=1)
def epsilon_before_the_mean(a: Alike) -> str:
    x = a.input()
    return a.chain(
        x, square=lambda v: a.g.op("Add", a.square(v), a.scalar(0.1)), stabilise=lambda v: v
    )


# exponent and root


def _power(a: Alike, exponent: str) -> str:
    return a.chain(a.input(), square=lambda v: a.g.op("Pow", v, exponent))


@look_alike(refusal=False)
def exponent_three(a: Alike) -> str:
    return _power(a, a.scalar(3.0))


@look_alike(refusal=False)
def exponent_next_to_two(a: Alike) -> str:
    """Positive data: a fractional power of a negative number is NaN."""
    x = a.input(values=a.rng.uniform(100, 1000, (2, 3, 8)))
    exponent = a.scalar(float(np.nextafter(np.float32(2), np.float32(3))))
    return a.chain(x, square=lambda v: a.g.op("Pow", v, exponent))


@look_alike(refusal=False)
def exponent_is_graph_input(a: Alike) -> str:
    return _power(a, a.input("exponent", values=np.array(4.0)))


@look_alike(refusal=False)
def exponent_is_overridable(a: Alike) -> str:
    exponent = a.input("exponent", values=np.array(4.0))
    a.g.initializers.append(numpy_helper.from_array(np.array(2.0, np.float32), exponent))
    return _power(a, exponent)


@look_alike(refusal=False)
def exponent_differs_by_channel(a: Alike) -> str:
    return _power(a, a.g.const(np.array([2, 2, 2, 2, 2, 2, 2, 4], np.float32)))


@look_alike(most=1, refusal=False)
def exponent_is_a_vector_of_twos(a: Alike) -> str:
    return _power(a, a.scalar(2.0, (8,)))


@look_alike(refusal=False)
def exponent_of_higher_rank(a: Alike) -> str:
    return _power(a, a.scalar(2.0, (1, 1, 1, 1)))


@look_alike(refusal=False)
def power_of_two_not_square(a: Alike) -> str:
    """2 ** x has the operands of x ** 2 the other way round."""
    return a.chain(a.input(), square=lambda v: a.g.op("Pow", a.scalar(2.0), v))


@look_alike(refusal=False)
def no_root(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: v)


@look_alike(refusal=False)
def cube_root(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: a.g.op("Pow", v, a.scalar(1 / 3)))


@look_alike()
def root_of_root(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: a.root(a.root(v)))


@look_alike(refusal=False)
def root_of_quarter(a: Alike) -> str:
    x = a.input()
    return a.chain(
        x,
        root=lambda v: a.g.op("Pow", v, a.scalar(-0.25)),
        divide=lambda v: a.g.op("Mul", x, v),
    )


@look_alike()
def root_clipped(a: Alike) -> str:
    clip = (a.scalar(0.9), a.scalar(1.1))
    return a.chain(a.input(), root=lambda v: a.g.op("Clip", a.root(v), *clip))


# axes and keepdims


def _axes(a: Alike, axes: list[int], shape: tuple[int, ...] = (2, 3, 8), keep: int = 1) -> str:
    x = a.input(shape=shape)
    return a.chain(x, mean=lambda v: a.g.reduce("ReduceMean", v, axes, keep))


@look_alike(most=1)
def mean_over_tokens(a: Alike) -> str:
    return _axes(a, [1], (2, 8, 8))


@look_alike(most=1)
def mean_over_batch(a: Alike) -> str:
    return _axes(a, [-3])


@look_alike()
def mean_over_first_and_last(a: Alike) -> str:
    return _axes(a, [0, -1])


@look_alike(most=1)
def mean_over_everything(a: Alike) -> str:
    return _axes(a, [0, 1, 2])


@look_alike(most=1, opsets=(13, 14, 17))
def mean_without_axes(a: Alike) -> str:
    """No axes attribute: all of them."""
    return a.chain(a.input(), mean=lambda v: a.g.op("ReduceMean", v, keepdims=1))


@look_alike(refusal=False, opsets=(18, 20, 24))
def mean_of_nothing(a: Alike) -> str:
    """Empty axes with noop_with_empty_axes: the mean is left out."""
    empty = a.g.const(np.zeros(0, np.int64), kind="initializer")
    return a.chain(
        a.input(),
        mean=lambda v: a.g.op("ReduceMean", v, empty, keepdims=1, noop_with_empty_axes=1),
    )


@look_alike(opsets=(18, 20, 24))
def axes_are_graph_input(a: Alike) -> str:
    axes = a.input("axes", values=np.array([1]), dtype=TensorProto.INT64)
    x = a.input(shape=(2, 8, 8))
    y = a.chain(x, mean=lambda v: a.g.op("ReduceMean", v, axes, keepdims=1))
    return a.ranked(y, (2, 8, 8))


@look_alike(opsets=(18, 20, 24))
def axes_are_overridable(a: Alike) -> str:
    axes = a.input("axes", values=np.array([1]), dtype=TensorProto.INT64)
    a.g.initializers.append(numpy_helper.from_array(np.array([-1], np.int64), axes))
    x = a.input(shape=(2, 8, 8))
    y = a.chain(x, mean=lambda v: a.g.op("ReduceMean", v, axes, keepdims=1))
    return a.ranked(y, (2, 8, 8))


@look_alike()
def dropped_axis_meets_equal_dimension(a: Alike) -> str:
    """[8, 8] / [8] divides column j by the root of row j."""
    return _axes(a, [-1], (8, 8), keep=0)


@look_alike()
def dropped_axis_of_equal_cube(a: Alike) -> str:
    return _axes(a, [2], (8, 8, 8), keep=0)


@look_alike()
def unsqueezed_at_the_wrong_axis(a: Alike) -> str:
    x = a.input(shape=(8, 8))
    return a.chain(x, mean=lambda v: a.g.unsqueeze(a.g.reduce("ReduceMean", v, [-1], 0), [0]))


@look_alike()
def root_gains_an_axis(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: a.g.unsqueeze(a.root(v), [0]))


# counts


def _sum(a: Alike, finish: str, value: float) -> str:
    return a.chain(
        a.input(),
        mean=lambda v: a.g.op(finish, a.g.reduce("ReduceSum", v, [-1], 1), a.scalar(value)),
    )


@look_alike()
def count_is_one_less(a: Alike) -> str:
    return _sum(a, "Div", 7.0)


@look_alike()
def count_is_a_little_off(a: Alike) -> str:
    return _sum(a, "Mul", 0.1252)


@look_alike()
def count_divides_the_wrong_way(a: Alike) -> str:
    return a.chain(
        a.input(),
        mean=lambda v: a.g.op("Div", a.scalar(8.0), a.g.reduce("ReduceSum", v, [-1], 1)),
    )


@look_alike()
def mean_with_momentum(a: Alike) -> str:
    return a.chain(a.input(), mean=lambda v: a.g.op("Mul", a.mean(v), a.scalar(0.9)))


@look_alike(most=1, refusal=False)
def sum_without_count(a: Alike) -> str:
    return a.chain(a.input(), mean=lambda v: a.g.reduce("ReduceSum", v, [-1], 1))


@look_alike(refusal=False)
def largest_instead_of_mean(a: Alike) -> str:
    return a.chain(a.input(), mean=lambda v: a.g.reduce("ReduceMax", v, [-1], 1))


@look_alike()
def norm_with_wrong_count(a: Alike) -> str:
    """ReduceL2 times 1/n instead of 1/sqrt(n)."""
    x = a.input()
    root = a.g.op("Mul", a.g.reduce("ReduceL2", x, [-1], 1), a.scalar(1 / 8))
    return a.g.op("Div", x, root)


@look_alike(most=1)
def unit_norm_with_wrong_count(a: Alike) -> str:
    x = a.g.op("LpNormalization", a.input(), axis=-1, p=2)
    return a.g.op("Mul", x, a.scalar(float(np.sqrt(7))))


@look_alike(refusal=False)
def unit_norm_of_absolutes(a: Alike) -> str:
    x = a.g.op("LpNormalization", a.input(), axis=-1, p=1)
    return a.g.op("Mul", x, a.scalar(float(np.sqrt(8))))


@look_alike(most=1)
def unit_norm_over_tokens(a: Alike) -> str:
    x = a.g.op("LpNormalization", a.input(shape=(2, 8, 8)), axis=1, p=2)
    return a.g.op("Mul", x, a.scalar(float(np.sqrt(8))))


@look_alike(most=1, refusal=False)
def unit_norm_of_a_zero_row(a: Alike) -> str:
    """LpNormalization leaves zeros; a division by their root mean square does not."""
    x = a.input(values=a.rng.standard_normal((2, 3, 8)) * [[[1], [0], [1e-3]]])
    unit = a.g.op("LpNormalization", x, axis=-1, p=2)
    return a.g.op("Mul", unit, a.scalar(float(np.sqrt(8))))


# casts


def _through(a: Alike, value: str, *types: int) -> str:
    for dtype in types:
        value = a.g.cast(value, dtype)
    return value


@look_alike()
def lossy_cast_before_the_square(a: Alike) -> str:
    return a.chain(a.input(), square=lambda v: a.square(_through(a, v, FLOAT16, FLOAT)))


@look_alike()
def lossy_cast_of_the_numerator(a: Alike) -> str:
    x = a.input()
    return a.chain(x, divide=lambda v: a.g.op("Div", _through(a, x, FLOAT16, FLOAT), v))


@look_alike(norms=1)
def lossy_cast_in_front(a: Alike) -> str:
    """The norm of the blurred tensor: a norm, but not of the tensor before the casts."""
    return a.chain(_through(a, a.input(), FLOAT16, FLOAT))


@look_alike()
def mean_through_half(a: Alike) -> str:
    return a.chain(a.input(), mean=lambda v: _through(a, a.mean(v), FLOAT16, FLOAT))


@look_alike()
def root_through_half(a: Alike) -> str:
    return a.chain(a.input(), root=lambda v: _through(a, a.root(v), FLOAT16, FLOAT))


@look_alike()
def square_through_integer(a: Alike) -> str:
    x = a.input(values=a.rng.standard_normal((2, 3, 8)) * 3)
    return a.chain(x, square=lambda v: a.square(_through(a, v, INT32, FLOAT)))


@look_alike(norms=1)
def integer_in_front(a: Alike) -> str:
    x = a.input(values=a.rng.standard_normal((2, 3, 8)) * 9)
    return a.chain(_through(a, x, INT32, FLOAT))


@look_alike(refusal=False)
def square_of_integers(a: Alike) -> str:
    """The square wraps around in int32 before it becomes a float."""
    values = a.rng.integers(-90_000, 90_000, (2, 3, 8))
    x = a.input(values=values, dtype=INT32)
    wide = a.g.cast(x, FLOAT)
    return a.chain(
        x,
        square=lambda v: a.g.cast(a.g.op("Mul", v, v), FLOAT),
        stabilise=lambda v: a.stabilise(a.g.op("Abs", v)),
        divide=lambda v: a.g.op("Div", wide, v),
    )


@look_alike(most=1)
def mean_in_double(a: Alike) -> str:
    """Wider in the middle: nothing is lost, the sum is only better."""
    x = a.input()
    return a.chain(x, mean=lambda v: _through(a, a.mean(_through(a, v, DOUBLE)), FLOAT))


@look_alike(norms=1)
def float32_output_of_half_input(a: Alike) -> str:
    return a.chain(a.g.cast(a.input(dtype=FLOAT16), FLOAT))


@look_alike(norms=1)
def output_through_bfloat16(a: Alike) -> str:
    """Two roundings behind the norm; neither may be folded away."""
    y = a.chain(a.g.cast(a.input(dtype=FLOAT16), FLOAT), weight="")
    return _through(a, y, TensorProto.BFLOAT16, FLOAT, FLOAT16)


@look_alike(most=1, dtype=FLOAT16)
def wholly_in_half_and_large(a: Alike) -> str:
    """The square of 300 is infinite in float16: the row becomes 0, not 1."""
    values = a.rng.uniform(0.5, 1.0, (2, 3, 8)) * [[[1], [400], [1]]]
    return a.chain(a.input(values=values))


@look_alike(most=1, refusal=False)
def square_rounded_to_half(a: Alike) -> str:
    """Squared in float16, averaged in float32."""
    x = a.input(dtype=FLOAT16, values=a.rng.uniform(0.5, 1.0, (2, 3, 8)) * [[[1], [400], [1]]])
    squared = a.g.cast(a.g.op("Mul", x, x), FLOAT)
    root = a.root(a.stabilise(a.mean(squared)))
    return a.g.cast(a.g.op("Div", a.g.cast(x, FLOAT), root), FLOAT16)

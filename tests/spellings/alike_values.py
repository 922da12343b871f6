"""Look-alikes by their constants: epsilon, exponent, axes, counts, casts."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from .alike import FLOAT, FLOAT16, Alike, Body, look_alike, look_alikes
from .steps import (
    OTHER,
    VALUE,
    Made,
    X,
    drawn_times,
    fed,
    mean,
    op,
    reduced,
    same,
    scalar,
    shaped,
    stored,
    then,
    through,
    total,
)

DOUBLE, INT32, INT64 = TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64


def overridable(hint: str, given: float, default: float) -> Made:
    """An initializer that is a graph input too is only a default: the feed wins."""
    return lambda a: a.overridable(hint, np.array(given), np.array(default, np.float32))


# epsilon

_ADDED = {"stabilise": op("Add", OTHER)}

look_alikes(
    epsilon_is_graph_input={"first": fed("epsilon", 0.25), **_ADDED},
    epsilon_is_overridable={"first": overridable("epsilon", 0.25, 1e-5), **_ADDED},
    epsilon_differs_by_token={"first": stored([[1e-5], [0.5], [2.0]]), **_ADDED},
    epsilon_differs_by_channel={"first": stored(np.linspace(0.1, 1, 8)), **_ADDED},
    # [2, 3, 1] + [1, 1, 1, 1] has rank 4, and so has everything behind it.
    epsilon_of_higher_rank={"first": scalar(1e-5, 1, 1, 1, 1), **_ADDED},
    epsilon_negative={"stabilise": op("Add", -1e-2)},
    epsilon_infinite={"stabilise": op("Add", np.inf)},
    epsilon_nan={"stabilise": op("Add", np.nan)},
    epsilon_subtracted={"stabilise": op("Sub", 1e-2)},
    epsilon_minus_mean={"stabilise": op("Sub", 9.0, VALUE)},
    epsilon_inside_and_outside={"root": then(Alike.root, op("Add", 0.5))},
    epsilon_by_max_of_an_input={"root": then(Alike.root, op("Max", shaped()))},
    epsilon_by_max_of_a_vector={
        "first": stored(np.linspace(0.1, 1.0, 8)),
        "root": then(Alike.root, op("Max", OTHER)),
    },
    epsilon_by_max_of_the_inverse={
        "root": then(Alike.root, op("Reciprocal"), op("Max", 0.5)),
        "divide": op("Mul", X, VALUE),
    },
    epsilon_by_min={"root": then(Alike.root, op("Min", 0.5))},
    epsilon_from_data={"stabilise": op("Add", lambda a: a.g.op("Abs", a.x))},
)

look_alikes(
    most=1,
    # Adds up to one epsilon: a norm for who wants to see it.
    epsilon_twice_inside={"stabilise": then(op("Add", 0.5), Alike.stabilise)},
    epsilon_before_the_mean={"square": then(Alike.square, op("Add", 0.1)), "stabilise": same},
)

look_alikes(
    norms=1,
    # One initializer is the exponent and the epsilon.
    epsilon_is_the_exponent={
        "first": scalar(2.0),
        "square": op("Pow", OTHER),
        "stabilise": op("Add", OTHER, VALUE),
    },
)

look_alikes(
    most=1,
    dtype=DOUBLE,
    # It keeps a row of zeros at zero; as a float32 attribute it would be 0, and the row NaN.
    epsilon_below_float32={
        "row": drawn_times([[[1.0], [0.0], [1e-31]]]),
        "stabilise": op("Add", 1e-60),
    },
)

look_alikes(
    norms=1,
    dtype=DOUBLE,
    # In float64 the difference between 1e-5 and float32(1e-5) shows where epsilon rules.
    epsilon_not_a_float32={"row": drawn_times(1e-4)},
)

# exponent and root

_POWER = {"square": op("Pow", OTHER)}

look_alikes(
    refusal=False,
    exponent_three={"first": scalar(3.0), **_POWER},
    # Positive data: a fractional power of a negative number is NaN.
    exponent_next_to_two={
        "row": lambda a: a.input(values=a.rng.uniform(100, 1000, (2, 3, 8))),
        "other": scalar(float(np.nextafter(np.float32(2), np.float32(3)))),
        **_POWER,
    },
    exponent_is_graph_input={"first": fed("exponent", 4.0), **_POWER},
    exponent_is_overridable={"first": overridable("exponent", 4.0, 2.0), **_POWER},
    exponent_differs_by_channel={"first": stored([2, 2, 2, 2, 2, 2, 2, 4]), **_POWER},
    exponent_of_higher_rank={"first": scalar(2.0, 1, 1, 1, 1), **_POWER},
    # 2 ** x has the operands of x ** 2 the other way round.
    power_of_two_not_square={"square": op("Pow", 2.0, VALUE)},
    no_root={"root": same},
    cube_root={"root": op("Pow", 1 / 3)},
    root_of_quarter={"root": op("Pow", -0.25), "divide": op("Mul", X, VALUE)},
)

look_alikes(most=1, refusal=False, exponent_is_a_vector_of_twos={"first": scalar(2.0, 8), **_POWER})

look_alikes(
    root_of_root={"root": then(Alike.root, Alike.root)},
    root_clipped={
        "first": lambda a: (a.scalar(0.9), a.scalar(1.1)),
        "root": lambda a, v: a.g.op("Clip", a.root(v), *a.other),
    },
)

# axes and keepdims

look_alikes(
    most=1,
    mean_over_tokens={"row": shaped(2, 8, 8), "mean": reduced("ReduceMean", [1])},
    mean_over_batch={"mean": reduced("ReduceMean", [-3])},
    mean_over_everything={"mean": reduced("ReduceMean", [0, 1, 2])},
)

look_alikes(
    mean_over_first_and_last={"mean": reduced("ReduceMean", [0, -1])},
    # [8, 8] / [8] divides column j by the root of row j.
    dropped_axis_meets_equal_dimension={
        "row": shaped(8, 8),
        "mean": reduced("ReduceMean", [-1], 0),
    },
    dropped_axis_of_equal_cube={"row": shaped(8, 8, 8), "mean": reduced("ReduceMean", [2], 0)},
    unsqueezed_at_the_wrong_axis={
        "row": shaped(8, 8),
        "mean": then(reduced("ReduceMean", [-1], 0), lambda a, v: a.g.unsqueeze(v, [0])),
    },
    root_gains_an_axis={"root": then(Alike.root, lambda a, v: a.g.unsqueeze(v, [0]))},
)

# No axes attribute: all of them.
look_alikes(most=1, opsets=(13, 14, 17), mean_without_axes={"mean": op("ReduceMean", keepdims=1)})

look_alikes(
    refusal=False,
    opsets=(18, 20, 24),
    # Empty axes with noop_with_empty_axes: the mean is left out.
    mean_of_nothing={
        "first": lambda a: a.g.const(np.zeros(0, np.int64), kind="initializer"),
        "mean": op("ReduceMean", OTHER, keepdims=1, noop_with_empty_axes=1),
    },
)


def _ranked(axes: Made) -> Body:
    """A mean over axes of which the file does not say where they are."""

    def body(a: Alike) -> str:
        own, x = axes(a), a.input(shape=(2, 8, 8))
        y = a.chain(x, mean=lambda v: a.g.op("ReduceMean", v, own, keepdims=1))
        return a.ranked(y, (2, 8, 8))

    return body


look_alikes(
    opsets=(18, 20, 24),
    axes_are_graph_input=_ranked(lambda a: a.input("axes", values=np.array([1]), dtype=INT64)),
    axes_are_overridable=_ranked(lambda a: a.overridable("axes", np.array([1]), np.array([-1]))),
)

# counts

look_alikes(
    count_is_one_less={"mean": then(total, op("Div", 7.0))},
    count_is_a_little_off={"mean": then(total, op("Mul", 0.1252))},
    count_divides_the_wrong_way={"mean": lambda a, v: a.g.op("Div", a.scalar(8.0), total(a, v))},
    mean_with_momentum={"mean": then(mean, op("Mul", 0.9))},
)

look_alikes(most=1, refusal=False, sum_without_count={"mean": total})
look_alikes(refusal=False, largest_instead_of_mean={"mean": reduced("ReduceMax")})


@look_alike()
def norm_with_wrong_count(a: Alike) -> str:
    """ReduceL2 times 1/n instead of 1/sqrt(n)."""
    x = a.input()
    root = a.g.op("Mul", a.g.reduce("ReduceL2", x, [-1], 1), a.scalar(1 / 8))
    return a.g.op("Div", x, root)


def _unit(count: int, row: Made = Alike.input, axis: int = -1, p: int = 2) -> Body:
    """A row of length one, times the root of a count."""
    return lambda a: op("Mul", math.sqrt(count))(
        a, a.g.op("LpNormalization", row(a), axis=axis, p=p)
    )


look_alikes(
    most=1,
    unit_norm_with_wrong_count=_unit(7),
    unit_norm_over_tokens=_unit(8, shaped(2, 8, 8), axis=1),
)
look_alikes(refusal=False, unit_norm_of_absolutes=_unit(8, p=1))
# LpNormalization leaves zeros; a division by their root mean square does not.
_ZERO = drawn_times([[[1], [0], [1e-3]]])
look_alikes(most=1, refusal=False, unit_norm_of_a_zero_row=_unit(8, _ZERO))

# casts

_HALVED, _WHOLE = through(FLOAT16, FLOAT), through(INT32, FLOAT)

look_alikes(
    lossy_cast_before_the_square={"square": then(_HALVED, Alike.square)},
    lossy_cast_of_the_numerator={"divide": op("Div", lambda a: _HALVED(a, a.x), VALUE)},
    square_through_integer={"row": drawn_times(3), "square": then(_WHOLE, Alike.square)},
)

look_alikes(
    norms=1,
    # The norm of the blurred tensor: a norm, but not of the tensor before the casts.
    lossy_cast_in_front={"row": lambda a: _HALVED(a, a.input())},
    integer_in_front={"row": lambda a: _WHOLE(a, drawn_times(9)(a))},
    float32_output_of_half_input={"row": lambda a: a.g.cast(a.input(dtype=FLOAT16), FLOAT)},
)

look_alikes(
    most=1,
    # Wider in the middle: nothing is lost, the sum is only better.
    mean_in_double={"mean": then(through(DOUBLE), mean, through(FLOAT))},
)


def _large(a: Alike) -> np.ndarray:
    """The square of 300 is infinite in float16: the row becomes 0, not 1."""
    return a.rng.uniform(0.5, 1.0, (2, 3, 8)) * [[[1], [400], [1]]]


look_alikes(
    most=1, dtype=FLOAT16, wholly_in_half_and_large={"row": lambda a: a.input(values=_large(a))}
)


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


@look_alike(norms=1)
def output_through_bfloat16(a: Alike) -> str:
    """Two roundings behind the norm; neither may be folded away."""
    y = a.chain(a.g.cast(a.input(dtype=FLOAT16), FLOAT), weight="")
    return through(TensorProto.BFLOAT16, FLOAT, FLOAT16)(a, y)


@look_alike(most=1, refusal=False)
def square_rounded_to_half(a: Alike) -> str:
    """Squared in float16, averaged in float32."""
    x = a.input(dtype=FLOAT16, values=_large(a))
    squared = a.g.cast(a.g.op("Mul", x, x), FLOAT)
    root = a.root(a.stabilise(a.mean(squared)))
    return a.g.cast(a.g.op("Div", a.g.cast(x, FLOAT), root), FLOAT16)

"""Look-alikes by what is multiplied or added: weight, bias, residual, gate.

Nearly all hold a weightless norm; what stands behind it is not what it seems.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .alike import FLOAT, FLOAT16, Alike, Body, look_alike, look_alikes
from .steps import OTHER, Made, fed, op, shaped, then, total

# weight and bias


def _times(a: Alike, other: str, shape: tuple[int, ...] = (2, 3, 8)) -> str:
    return a.g.op("Mul", a.chain(a.input(shape=shape), weight=""), other)


look_alikes(
    norms=1,
    weight_is_a_modulation=lambda a: _times(a, a.input("scale")),
    # AdaLN: [B, 1, n].
    weight_is_a_modulation_per_batch=lambda a: _times(a, a.input("scale", (2, 1, 8))),
    weight_is_per_token=lambda a: _times(a, a.weight((3, 8))),
    weight_is_per_row=lambda a: _times(a, a.weight((3, 1))),
    # [n, 1] on [B, n, n]: the right count of elements, on the wrong axis.
    weight_is_a_column_as_long_as_the_row=lambda a: _times(a, a.weight((8, 1)), (2, 8, 8)),
    weight_is_a_scalar=lambda a: _times(a, a.scalar(1.5)),
    weight_has_one_element=lambda a: _times(a, a.scalar(1.5, (1,))),
    weight_of_higher_rank=lambda a: _times(a, a.weight((1, 1, 1, 8))),
    weight_of_higher_rank_than_a_vector=lambda a: _times(a, a.weight((1, 8)), (8,)),
    # [2, 3, 1] * [8] is [2, 3, 8].
    weight_longer_than_a_row_of_one=lambda a: _times(a, a.weight(), (2, 3, 1)),
    weight_is_the_input=lambda a: a.g.op("Mul", a.chain(x := a.input(), weight=""), x),
    weight_is_the_norm_itself=lambda a: a.g.op("Mul", y := a.chain(a.input(), weight=""), y),
    # [k] with k fed as 1: a scalar in disguise.
    weight_of_unknown_length=lambda a: _times(a, a.input("weight", (1,), dims=("k",))),
    # Fed as [2, 3, 8]: a modulation in disguise.
    weight_of_unknown_rank=lambda a: a.ranked(_times(a, a.unranked("weight"))),
    bias_is_a_modulation=lambda a: a.g.op("Add", a.chain(a.input()), a.input("shift")),
    bias_of_higher_rank=lambda a: a.g.op("Add", a.chain(a.input()), a.weight((1, 1, 1, 8))),
    bias_is_subtracted=lambda a: a.g.op("Sub", a.weight(), a.chain(a.input())),
    offset_is_not_one=lambda a: _times(a, a.g.op("Add", a.weight(), a.scalar(0.5))),
    offset_minus_weight=lambda a: _times(a, a.g.op("Sub", a.scalar(1.0), a.weight())),
    divided_by_the_weight=lambda a: a.g.op("Div", a.chain(a.input(), weight=""), a.weight()),
)


def _largest(a: Alike, rows: str) -> str:
    """[n] of [3, n]."""
    return a.g.reduce("ReduceMax", rows, [0], 0)


def _unscaled(a: Alike, *shape: int, **how: Any) -> str:
    return a.chain(a.input(shape=shape or (2, 3, 8), **how), weight="")


look_alikes(
    norms=1,
    # The shape of a weight, and still the input.
    weight_is_the_input_vector=lambda a: a.g.op(
        "Mul", a.chain(x := a.input(shape=(8,)), weight=""), x
    ),
    # Computed from the normalised tensor: it cannot feed the node that makes it.
    weight_is_made_from_the_norm=lambda a: a.g.op("Mul", y := _unscaled(a, 3, 8), _largest(a, y)),
    weight_is_made_from_the_input=lambda a: a.g.op(
        "Mul", a.chain(x := a.input(shape=(3, 8)), weight=""), _largest(a, x)
    ),
    # A norm whatever its length.
    row_of_unknown_length_without_weight=lambda a: _unscaled(a, 2, 3, 5, dims=(2, 3, "n")),
    bias_before_weight=lambda a: a.g.op("Mul", a.g.op("Add", _unscaled(a), a.weight()), a.weight()),
)


@look_alike(norms=1)
def weight_is_a_modulation_of_unit_offset(a: Alike) -> str:
    """AdaLN: y * (1 + scale) + shift, all [B, 1, n]."""
    scale = a.g.op("Add", a.scalar(1.0), a.input("scale", (2, 1, 8)))
    return a.g.op("Add", _times(a, scale), a.input("shift", (2, 1, 8)))


@look_alike(norms=1)
def weight_is_overridable(a: Alike) -> str:
    """An initializer that is fed: the feed counts."""
    fed = a.rng.uniform(0.5, 1.5, 8)
    return _times(a, a.overridable("weight", fed, np.ones(8, np.float32)))


@look_alike(most=1, refusal=False)
def row_of_unknown_length(a: Alike) -> str:
    """The last dimension of x is fed as 1; the weight makes the output larger."""
    x = a.input(shape=(2, 3, 1), dims=(2, 3, "n"))
    return a.g.op("Mul", a.chain(x, weight=""), a.weight())


@look_alike(norms=1)
def offset_is_a_vector(a: Alike) -> str:
    ones = a.g.const(np.linspace(1, 2, 8, dtype=np.float32))
    return _times(a, a.g.op("Add", ones, a.weight()))


# residual: all hold a norm of the sum, not all of them a skip norm


def _summed(left: Made, right: Made, op_type: str = "Add") -> Body:
    def body(a: Alike) -> list[str]:
        total = a.g.op(op_type, left(a), right(a))
        return [a.chain(total), total]

    return body


look_alikes(
    norms=1,
    residual_is_broadcast=_summed(Alike.input, lambda a: a.input("residual", (8,))),
    residual_is_broadcast_over_tokens=_summed(
        lambda a: a.input("residual", (2, 1, 8)), Alike.input
    ),
    residual_is_larger=_summed(lambda a: a.input("residual", (1, 8)), Alike.input),
    residual_is_subtracted=_summed(Alike.input, fed("residual"), "Sub"),
    residual_is_the_norm_itself=lambda a: a.g.op("Add", y := a.chain(a.input()), y),
)


@look_alike(norms=1)
def residual_is_the_input(a: Alike) -> list[str]:
    x = a.input()
    total = a.g.op("Add", x, x)
    return [a.chain(total), total]


@look_alike(norms=1)
def residual_of_unknown_shape(a: Alike) -> list[str]:
    total = a.g.op("Add", a.input(), a.unranked("residual", (1, 8)))
    return [a.ranked(a.chain(total, weight="")), a.ranked(a.g.op("Neg", total))]


@look_alike(norms=1)
def residual_in_float32_of_half(a: Alike) -> list[str]:
    """Added wide and rounded once; the norm is that of the rounded sum."""
    wide = [a.g.cast(a.input(dtype=FLOAT16), FLOAT) for _ in range(2)]
    total = a.g.cast(a.g.op("Add", *wide), FLOAT16)
    y = a.chain(a.g.cast(total, FLOAT), weight="")
    return [a.g.cast(y, FLOAT16), total]


# gate


def _silu(gate: Made) -> Body:
    """y * z * sigmoid(z)."""

    def body(a: Alike) -> str:
        z = gate(a)
        return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))

    return body


look_alikes(
    norms=1,
    gate_is_the_norm=lambda a: a.g.op("Mul", y := a.chain(a.input()), a.g.op("Sigmoid", y)),
    gate_is_tanh=lambda a: a.g.op("Mul", a.chain(a.input()), a.g.op("Tanh", a.input("gate"))),
    gate_of_other_shape=_silu(lambda a: a.input("gate", (2, 1, 8))),
    gate_is_a_vector=_silu(lambda a: a.input("gate", (8,))),
    gate_is_silu_of_silu=_silu(lambda a: a.g.op("Sigmoid", a.input("gate"))),
)


@look_alike(norms=1)
def gate_is_the_input(a: Alike) -> str:
    x = a.input()
    return a.g.op("Mul", a.chain(x), a.g.op("Mul", x, a.g.op("Sigmoid", x)))


@look_alike(norms=1)
def gate_makes_it_larger(a: Alike) -> str:
    z = a.input("gate", (2, 3, 8))
    return a.g.op("Mul", a.chain(a.input(shape=(3, 8))), a.g.op("Sigmoid", z))


@look_alike(norms=1)
def gate_of_two_tensors(a: Alike) -> str:
    """z1 * sigmoid(z2): no silu."""
    z, other = a.input("gate"), a.input("other")
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", other)))


@look_alike(norms=1)
def gate_is_quick_gelu(a: Alike) -> str:
    """z * sigmoid(1.702 z)."""
    z = a.input("gate")
    inner = a.g.op("Sigmoid", a.g.op("Mul", z, a.scalar(1.702)))
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, inner))


@look_alike(norms=1, opsets=(24,))
def gate_is_swish_with_slope(a: Alike) -> str:
    z = a.input("gate")
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Swish", z, alpha=1.5))


def _normalized(a: Alike) -> str:
    """``x / max(||x||, eps)``."""
    x = a.input()
    length = a.g.op("Clip", a.g.reduce("ReduceL2", x, [-1], 1), a.scalar(1e-12))
    return a.g.op("Div", x, length)


# Times sqrt(n + 1): a norm with a scale of one number.
look_alikes(
    most=1, normalize_times_another_root=lambda a: a.g.op("Mul", _normalized(a), a.scalar(3.0))
)
# An L2 norm, clamped.
look_alikes(refusal=False, torch_normalize=_normalized)


# Look-alikes by the shapes that they stand between.


@look_alike()
def positive_axis_of_unknown_rank(a: Alike) -> str:
    """Axis 1 is the last one of a matrix; this is fed with rank 3."""
    x = a.unranked(shape=(2, 8, 8))
    y = a.chain(x, mean=lambda v: a.g.reduce("ReduceMean", v, [1], 1), weight="")
    return a.ranked(y, (2, 8, 8))


def _count(a: Alike) -> str:
    return a.g.cast(a.g.op("Gather", a.g.op("Shape", a.x), a.g.ints(-1)), FLOAT)


look_alikes(norms=1, no_rows={"row": shaped(0, 3, 8)})
look_alikes(
    most=1,
    # 1/n computed in the graph.
    count_from_the_shape={"other": _count, "mean": then(total, op("Div", OTHER))},
)
look_alikes(most=1, refusal=False, rows_without_elements={"row": shaped(2, 3, 0), "weight": ""})
look_alikes(
    refusal=False,
    # Divided by 8, with a row fed as 5: only the file's word counts.
    sum_over_unknown_length={
        "row": lambda a: a.input(shape=(2, 5), dims=(2, "n")),
        "mean": then(total, op("Div", 8.0)),
        "weight": "",
    },
)
look_alikes(
    most=1,
    refusal=False,
    # Weightless it is a norm whatever the rank; with a weight the output might grow.
    negative_axis_of_unknown_rank=lambda a: a.ranked(a.chain(a.unranked())),
    # No axis at all: x / |x|.
    scalar_input=lambda a: a.g.op("Div", x := a.input(shape=()), a.root(a.stabilise(a.square(x)))),
)

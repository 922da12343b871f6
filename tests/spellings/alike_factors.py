"""Look-alikes by what is multiplied or added: weight, bias, residual, gate.

Nearly all hold a weightless norm; what stands behind it is not what it seems.
"""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from .alike import FLOAT, FLOAT16, Alike, look_alike

# weight and bias


def _times(a: Alike, other: str, shape: tuple[int, ...] = (2, 3, 8)) -> str:
    return a.g.op("Mul", a.chain(a.input(shape=shape), weight=""), other)


@look_alike(norms=1)
def weight_is_a_modulation(a: Alike) -> str:
    return _times(a, a.input("scale"))


@look_alike(norms=1)
def weight_is_a_modulation_per_batch(a: Alike) -> str:
    """AdaLN: [B, 1, n]."""
    return _times(a, a.input("scale", (2, 1, 8)))


@look_alike(norms=1)
def weight_is_a_modulation_of_unit_offset(a: Alike) -> str:
    """AdaLN: y * (1 + scale) + shift, all [B, 1, n]."""
    scale = a.g.op("Add", a.scalar(1.0), a.input("scale", (2, 1, 8)))
    return a.g.op("Add", _times(a, scale), a.input("shift", (2, 1, 8)))


@look_alike(norms=1)
def weight_is_per_token(a: Alike) -> str:
    return _times(a, a.weight((3, 8)))


@look_alike(norms=1)
def weight_is_per_row(a: Alike) -> str:
    return _times(a, a.weight((3, 1)))


@look_alike(norms=1)
def weight_is_a_column_as_long_as_the_row(a: Alike) -> str:
    """[n, 1] on [B, n, n]: the right count of elements, on the wrong axis."""
    return _times(a, a.weight((8, 1)), (2, 8, 8))


@look_alike(norms=1)
def weight_is_a_scalar(a: Alike) -> str:
    return _times(a, a.scalar(1.5))


@look_alike(norms=1)
def weight_has_one_element(a: Alike) -> str:
    return _times(a, a.scalar(1.5, (1,)))


@look_alike(norms=1)
def weight_of_higher_rank(a: Alike) -> str:
    return _times(a, a.weight((1, 1, 1, 8)))


@look_alike(norms=1)
def weight_of_higher_rank_than_a_vector(a: Alike) -> str:
    return _times(a, a.weight((1, 8)), (8,))


@look_alike(norms=1)
def weight_longer_than_a_row_of_one(a: Alike) -> str:
    """[2, 3, 1] * [8] is [2, 3, 8]."""
    return _times(a, a.weight(), (2, 3, 1))


@look_alike(norms=1)
def weight_is_the_input(a: Alike) -> str:
    x = a.input()
    return a.g.op("Mul", a.chain(x, weight=""), x)


@look_alike(norms=1)
def weight_is_the_input_vector(a: Alike) -> str:
    """The shape of a weight, and still the input."""
    x = a.input(shape=(8,))
    return a.g.op("Mul", a.chain(x, weight=""), x)


@look_alike(norms=1)
def weight_is_the_norm_itself(a: Alike) -> str:
    y = a.chain(a.input(), weight="")
    return a.g.op("Mul", y, y)


@look_alike(norms=1)
def weight_is_made_from_the_norm(a: Alike) -> str:
    """[n], but computed from the normalised tensor: it cannot feed the node that makes it."""
    y = a.chain(a.input(shape=(3, 8)), weight="")
    return a.g.op("Mul", y, a.g.reduce("ReduceMax", y, [0], 0))


@look_alike(norms=1)
def weight_is_made_from_the_input(a: Alike) -> str:
    x = a.input(shape=(3, 8))
    return a.g.op("Mul", a.chain(x, weight=""), a.g.reduce("ReduceMax", x, [0], 0))


@look_alike(norms=1)
def weight_is_overridable(a: Alike) -> str:
    """An initializer that is fed: the feed counts."""
    fed = a.rng.uniform(0.5, 1.5, 8).astype(np.float32)
    weight = a.input("weight", values=fed)
    a.g.initializers.append(numpy_helper.from_array(np.ones(8, np.float32), weight))
    return _times(a, weight)


@look_alike(norms=1)
def weight_of_unknown_length(a: Alike) -> str:
    """[k] with k fed as 1: a scalar in disguise."""
    return _times(a, a.input("weight", (1,), dims=("k",)))


@look_alike(norms=1)
def weight_of_unknown_rank(a: Alike) -> str:
    """Fed as [2, 3, 8]: a modulation in disguise."""
    return a.ranked(_times(a, a.unranked("weight")))


@look_alike(most=1, refusal=False)
def row_of_unknown_length(a: Alike) -> str:
    """The last dimension of x is fed as 1; the weight makes the output larger."""
    x = a.input(shape=(2, 3, 1), dims=(2, 3, "n"))
    return a.g.op("Mul", a.chain(x, weight=""), a.weight())


@look_alike(norms=1)
def row_of_unknown_length_without_weight(a: Alike) -> str:
    """A norm whatever its length."""
    return a.chain(a.input(shape=(2, 3, 5), dims=(2, 3, "n")), weight="")


@look_alike(norms=1)
def bias_is_a_modulation(a: Alike) -> str:
    return a.g.op("Add", a.chain(a.input()), a.input("shift"))


@look_alike(norms=1)
def bias_of_higher_rank(a: Alike) -> str:
    return a.g.op("Add", a.chain(a.input()), a.weight((1, 1, 1, 8)))


@look_alike(norms=1)
def bias_before_weight(a: Alike) -> str:
    return a.g.op("Mul", a.g.op("Add", a.chain(a.input(), weight=""), a.weight()), a.weight())


@look_alike(norms=1)
def bias_is_subtracted(a: Alike) -> str:
    return a.g.op("Sub", a.weight(), a.chain(a.input()))


@look_alike(norms=1)
def offset_is_not_one(a: Alike) -> str:
    weight = a.g.op("Add", a.weight(), a.scalar(0.5))
    return _times(a, weight)


@look_alike(norms=1)
def offset_minus_weight(a: Alike) -> str:
    return _times(a, a.g.op("Sub", a.scalar(1.0), a.weight()))


@look_alike(norms=1)
def offset_is_a_vector(a: Alike) -> str:
    ones = a.g.const(np.linspace(1, 2, 8, dtype=np.float32))
    return _times(a, a.g.op("Add", ones, a.weight()))


@look_alike(norms=1)
def divided_by_the_weight(a: Alike) -> str:
    return a.g.op("Div", a.chain(a.input(), weight=""), a.weight())


# residual: all hold a norm of the sum, not all of them a skip norm


@look_alike(norms=1)
def residual_is_broadcast(a: Alike) -> list[str]:
    total = a.g.op("Add", a.input(), a.input("residual", (8,)))
    return [a.chain(total), total]


@look_alike(norms=1)
def residual_is_broadcast_over_tokens(a: Alike) -> list[str]:
    total = a.g.op("Add", a.input("residual", (2, 1, 8)), a.input())
    return [a.chain(total), total]


@look_alike(norms=1)
def residual_is_larger(a: Alike) -> list[str]:
    total = a.g.op("Add", a.input("residual", (1, 8)), a.input(shape=(2, 3, 8)))
    return [a.chain(total), total]


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
def residual_is_subtracted(a: Alike) -> list[str]:
    total = a.g.op("Sub", a.input(), a.input("residual"))
    return [a.chain(total), total]


@look_alike(norms=1)
def residual_in_float32_of_half(a: Alike) -> list[str]:
    """Added wide and rounded once; the norm is that of the rounded sum."""
    wide = [a.g.cast(a.input(dtype=FLOAT16), FLOAT) for _ in range(2)]
    total = a.g.cast(a.g.op("Add", *wide), FLOAT16)
    y = a.chain(a.g.cast(total, FLOAT), weight="")
    return [a.g.cast(y, FLOAT16), total]


@look_alike(norms=1)
def residual_is_the_norm_itself(a: Alike) -> str:
    y = a.chain(a.input())
    return a.g.op("Add", y, y)


# gate


@look_alike(norms=1)
def gate_is_the_input(a: Alike) -> str:
    x = a.input()
    return a.g.op("Mul", a.chain(x), a.g.op("Mul", x, a.g.op("Sigmoid", x)))


@look_alike(norms=1)
def gate_is_the_norm(a: Alike) -> str:
    y = a.chain(a.input())
    return a.g.op("Mul", y, a.g.op("Sigmoid", y))


@look_alike(norms=1)
def gate_of_other_shape(a: Alike) -> str:
    z = a.input("gate", (2, 1, 8))
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


@look_alike(norms=1)
def gate_is_a_vector(a: Alike) -> str:
    z = a.input("gate", (8,))
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


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


@look_alike(norms=1)
def gate_is_tanh(a: Alike) -> str:
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Tanh", a.input("gate")))


@look_alike(norms=1, opsets=(24,))
def gate_is_swish_with_slope(a: Alike) -> str:
    z = a.input("gate")
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Swish", z, alpha=1.5))


@look_alike(norms=1)
def gate_is_silu_of_silu(a: Alike) -> str:
    z = a.g.op("Sigmoid", a.input("gate"))
    return a.g.op("Mul", a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


@look_alike(most=1)
def normalize_times_another_root(a: Alike) -> str:
    """``x / max(||x||, eps) * sqrt(n + 1)``: a norm with a scale of one number."""
    x = a.input()
    length = a.g.op("Clip", a.g.reduce("ReduceL2", x, [-1], 1), a.scalar(1e-12))
    return a.g.op("Mul", a.g.op("Div", x, length), a.scalar(3.0))


@look_alike(refusal=False)
def torch_normalize(a: Alike) -> str:
    """``x / max(||x||, eps)``: an L2 norm, clamped."""
    x = a.input()
    length = a.g.op("Clip", a.g.reduce("ReduceL2", x, [-1], 1), a.scalar(1e-12))
    return a.g.op("Div", x, length)

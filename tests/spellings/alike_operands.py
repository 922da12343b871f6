"""Look-alikes by their tensors: numerator, weight, residual, gate, group, part."""

from __future__ import annotations

import numpy as np

from .alike import FLOAT, FLOAT16, Alike, look_alike

# numerator and square


@look_alike()
def numerator_is_another_tensor(a: Alike) -> str:
    x, other = a.input(), a.input("other")
    return a.chain(x, divide=lambda v: a.g.op("Div", other, v))


@look_alike()
def numerator_is_the_next_hidden_state(a: Alike) -> str:
    """The root of x, used after x became x + r."""
    x = a.input()
    after = a.g.op("Add", x, a.input("residual"))
    return a.chain(x, divide=lambda v: a.g.op("Div", after, v))


@look_alike()
def numerator_is_transposed(a: Alike) -> str:
    x = a.input(shape=(8, 8))
    turned = a.g.op("Transpose", x, perm=[1, 0])
    return a.chain(x, divide=lambda v: a.g.op("Div", turned, v))


@look_alike()
def numerator_is_centred(a: Alike) -> str:
    """Centred above, not below."""
    x = a.input()
    centred = a.g.op("Sub", x, a.mean(x))
    return a.chain(x, divide=lambda v: a.g.op("Div", centred, v))


@look_alike()
def variance_below(a: Alike) -> str:
    """The standard deviation instead of the root mean square: centred below, not above."""
    x = a.input()
    centred = a.g.op("Sub", x, a.mean(x))
    return a.chain(x, square=lambda v: a.square(centred))


@look_alike(most=1, refusal=False)
def layer_norm(a: Alike) -> str:
    """LayerNorm: RMSNorm of the centred tensor would be right, LayerNormalization is better."""
    x = a.input()
    return a.chain(a.g.op("Sub", x, a.mean(x)))


@look_alike()
def mean_square_minus_square_of_mean(a: Alike) -> str:
    """The variance, computed the other way."""
    x = a.input()
    return a.chain(x, mean=lambda v: a.g.op("Sub", a.mean(v), a.square(a.mean(x))))


@look_alike(refusal=False)
def product_of_two_tensors(a: Alike) -> str:
    x = a.input(values=np.abs(a.rng.standard_normal((2, 3, 8))))
    other = a.input("other", values=np.abs(a.rng.standard_normal((2, 3, 8))))
    return a.chain(x, square=lambda v: a.g.op("Mul", v, other))


@look_alike(most=1)
def square_of_absolutes(a: Alike) -> str:
    return a.chain(a.input(), square=lambda v: a.square(a.g.op("Abs", v)))


@look_alike()
def square_of_the_positive_part(a: Alike) -> str:
    return a.chain(a.input(), square=lambda v: a.square(a.g.op("Relu", v)))


@look_alike()
def square_of_the_double(a: Alike) -> str:
    return a.chain(a.input(), square=lambda v: a.square(a.g.op("Mul", v, a.scalar(2.0))))


@look_alike()
def square_of_the_weighted(a: Alike) -> str:
    """rms(x * w) below x."""
    w = a.weight()
    return a.chain(a.input(), square=lambda v: a.square(a.g.op("Mul", v, w)))


@look_alike(norms=1)
def weighted_first_then_normalised(a: Alike) -> str:
    """A weightless norm of x * w; w is not its gain."""
    return a.chain(a.g.op("Mul", a.input(), a.weight()), weight="")


@look_alike()
def two_mean_squares(a: Alike) -> str:
    x, other = a.input(), a.input("other")
    return a.chain(x, mean=lambda v: a.g.op("Add", a.mean(v), a.mean(a.square(other))))


@look_alike()
def multiplied_with_the_root(a: Alike) -> str:
    x = a.input()
    return a.chain(x, divide=lambda v: a.g.op("Mul", x, v))


@look_alike()
def divided_by_the_inverse(a: Alike) -> str:
    x = a.input()
    return a.chain(x, divide=lambda v: a.g.op("Div", x, a.g.op("Reciprocal", v)))


@look_alike()
def root_over_numerator(a: Alike) -> str:
    x = a.input()
    return a.chain(x, divide=lambda v: a.g.op("Div", v, x))


@look_alike(most=1, refusal=False)
def two_over_root(a: Alike) -> str:
    x = a.input()
    return a.chain(x, divide=lambda v: a.g.op("Mul", x, a.g.op("Div", a.scalar(2.0), v)))


@look_alike()
def root_is_the_output(a: Alike) -> str:
    """Root mean square pooling."""
    return a.root(a.stabilise(a.mean(a.square(a.input()))))


@look_alike(norms=1, refusal=False)
def root_divides_another_tensor_too(a: Alike) -> list[str]:
    x, other = a.input(), a.input("other")
    root = a.root(a.stabilise(a.mean(a.square(x))))
    return [a.g.op("Div", x, root), a.g.op("Div", other, root)]


@look_alike(norms=1, most=2)
def one_root_two_weights(a: Alike) -> list[str]:
    x = a.input()
    y = a.chain(x, weight="")
    return [a.g.op("Mul", y, a.weight()), a.g.op("Mul", a.weight(), y)]


@look_alike(most=1)
def expanded_root(a: Alike) -> str:
    x = a.input()
    shape = a.g.op("Shape", x)
    return a.chain(x, root=lambda v: a.g.op("Expand", a.root(v), shape))


@look_alike()
def where_in_the_middle(a: Alike) -> str:
    x = a.input()
    mask = a.input("mask", values=np.array([[[1], [0], [1]]]), dtype=9)
    return a.chain(x, root=lambda v: a.g.op("Where", mask, a.root(v), a.scalar(1.0)))


@look_alike(most=1, refusal=False)
def dropout_in_the_middle(a: Alike) -> str:
    """Dropout in inference does nothing."""
    x = a.input()
    return a.chain(x, root=lambda v: a.g.op("Dropout", a.root(v)))


# weight: the core is a norm, what is multiplied behind it is not its weight


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
    from onnx import numpy_helper

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


def _gated(a: Alike, y: str, gate: str) -> str:
    return a.g.op("Mul", y, gate)


@look_alike(norms=1)
def gate_is_the_input(a: Alike) -> str:
    x = a.input()
    return _gated(a, a.chain(x), a.g.op("Mul", x, a.g.op("Sigmoid", x)))


@look_alike(norms=1)
def gate_is_the_norm(a: Alike) -> str:
    y = a.chain(a.input())
    return _gated(a, y, a.g.op("Sigmoid", y))


@look_alike(norms=1)
def gate_of_other_shape(a: Alike) -> str:
    z = a.input("gate", (2, 1, 8))
    return _gated(a, a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


@look_alike(norms=1)
def gate_is_a_vector(a: Alike) -> str:
    z = a.input("gate", (8,))
    return _gated(a, a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


@look_alike(norms=1)
def gate_makes_it_larger(a: Alike) -> str:
    z = a.input("gate", (2, 3, 8))
    return _gated(a, a.chain(a.input(shape=(3, 8))), a.g.op("Sigmoid", z))


@look_alike(norms=1)
def gate_of_two_tensors(a: Alike) -> str:
    """z1 * sigmoid(z2): no silu."""
    z, other = a.input("gate"), a.input("other")
    return _gated(a, a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", other)))


@look_alike(norms=1)
def gate_is_quick_gelu(a: Alike) -> str:
    """z * sigmoid(1.702 z)."""
    z = a.input("gate")
    inner = a.g.op("Sigmoid", a.g.op("Mul", z, a.scalar(1.702)))
    return _gated(a, a.chain(a.input()), a.g.op("Mul", z, inner))


@look_alike(norms=1)
def gate_is_tanh(a: Alike) -> str:
    return _gated(a, a.chain(a.input()), a.g.op("Tanh", a.input("gate")))


@look_alike(norms=1, opsets=(24,))
def gate_is_swish_with_slope(a: Alike) -> str:
    z = a.input("gate")
    return _gated(a, a.chain(a.input()), a.g.op("Swish", z, alpha=1.5))


@look_alike(norms=1)
def gate_is_silu_of_silu(a: Alike) -> str:
    z = a.g.op("Sigmoid", a.input("gate"))
    return _gated(a, a.chain(a.input()), a.g.op("Mul", z, a.g.op("Sigmoid", z)))


# groups and parts


@look_alike(norms=1)
def groups_cross_tokens(a: Alike) -> str:
    """[2, 3, 8] as [2, 4, 6]: rows of 6 that are no part of a row of 8."""
    rows = a.g.op("Reshape", a.input(), a.g.ints(2, 4, 6))
    y = a.g.op("Reshape", a.chain(rows, weight=""), a.g.ints(2, 3, 8))
    return a.g.op("Mul", y, a.weight())


@look_alike(norms=1)
def groups_of_transposed(a: Alike) -> str:
    """Interleaved groups: split, then turned, before the norm and back after it."""
    split = a.g.op("Reshape", a.input(), a.g.ints(2, 3, 4, 2))
    turned = a.g.op("Transpose", split, perm=[0, 1, 3, 2])
    y = a.g.op("Transpose", a.chain(turned, weight=""), perm=[0, 1, 3, 2])
    return a.g.op("Mul", a.g.op("Reshape", y, a.g.ints(2, 3, 8)), a.weight())


@look_alike(norms=1)
def groups_not_put_back_together(a: Alike) -> str:
    """The same number of elements, other rows."""
    split = a.g.op("Reshape", a.input(), a.g.ints(2, 3, 2, 4))
    y = a.g.op("Reshape", a.chain(split, weight=""), a.g.ints(3, 2, 8))
    return a.g.op("Mul", y, a.weight())


@look_alike(norms=1)
def groups_with_their_own_weight(a: Alike) -> str:
    """A weight of [g, s] inside: the gain of the whole row, or a core and a product."""
    split = a.g.op("Reshape", a.input(), a.g.ints(2, 3, 2, 4))
    y = a.g.op("Mul", a.chain(split, weight=""), a.weight((2, 4)))
    return a.g.op("Reshape", y, a.g.ints(2, 3, 8))


@look_alike(norms=1)
def groups_with_one_weight_for_each(a: Alike) -> str:
    """A weight of [s], the same for every group."""
    split = a.g.op("Reshape", a.input(), a.g.ints(2, 3, 2, 4))
    return a.g.op("Reshape", a.chain(split, weight=a.weight((4,))), a.g.ints(2, 3, 8))


@look_alike()
def groups_below_not_above(a: Alike) -> str:
    """The root of groups below a numerator that is grouped another way."""
    x = a.input(shape=(2, 3, 16))
    below = a.g.op("Reshape", x, a.g.ints(2, 3, 4, 4))
    turned = a.g.op("Transpose", below, perm=[0, 1, 3, 2])
    return a.chain(below, divide=lambda v: a.g.op("Div", turned, v), weight="")


def _part(a: Alike, start: int, end: int, step: int = 1, axis: int = -1) -> str:
    x = a.input(shape=(8, 8))
    bounds = [a.g.ints(value) for value in (start, end, axis, step)]
    return a.chain(x, square=lambda v: a.square(a.g.op("Slice", v, *bounds)))


@look_alike()
def part_is_not_the_first(a: Alike) -> str:
    return _part(a, 4, 8)


@look_alike()
def part_from_the_end(a: Alike) -> str:
    return _part(a, -4, 1_000_000)


@look_alike()
def part_skips(a: Alike) -> str:
    return _part(a, 0, 8, 2)


@look_alike()
def part_is_reversed(a: Alike) -> str:
    """From element 3 down to 0: the same sum, but nobody should rely on it."""
    return _part(a, 7, 3, -1)


@look_alike()
def part_of_another_axis(a: Alike) -> str:
    """The first row for all rows."""
    x = a.input(shape=(8, 8))
    bounds = [a.g.ints(value) for value in (0, 1, 0)]
    return a.chain(x, square=lambda v: a.square(a.g.op("Slice", v, *bounds)))


@look_alike(most=1)
def part_is_the_whole(a: Alike) -> str:
    return _part(a, 0, 1_000_000)


@look_alike(most=1)
def part_ends_before_the_end(a: Alike) -> str:
    return _part(a, 0, -3)


@look_alike()
def part_counted_as_the_whole(a: Alike) -> str:
    """The sum of the first 4, divided by 8."""
    x = a.input()
    first = a.g.op("Slice", x, a.g.ints(0), a.g.ints(4), a.g.ints(-1))
    return a.chain(
        x,
        square=lambda v: a.square(first),
        mean=lambda v: a.g.op("Div", a.g.reduce("ReduceSum", v, [-1], 1), a.scalar(8.0)),
    )


@look_alike()
def part_is_the_second_of_a_split(a: Alike) -> str:
    x = a.input()
    second = a.g.ops("Split", x, a.g.ints(4, 4), count=2, axis=-1)[1]
    return a.chain(x, square=lambda v: a.square(second))


@look_alike()
def part_ends_at_an_input(a: Alike) -> str:
    x = a.input()
    end = a.input("end", values=np.array([3]), dtype=7)
    first = a.g.op("Slice", x, a.g.ints(0), end, a.g.ints(-1))
    return a.chain(x, square=lambda v: a.square(first))


@look_alike(norms=1)
def part_is_normalised_alone(a: Alike) -> str:
    """The first 4 elements, normalised by themselves, in front of the others."""
    x = a.input()
    first, second = a.g.ops("Split", x, a.g.ints(4, 4), count=2, axis=-1)
    y = a.chain(first, weight=a.weight((4,)))
    return a.g.op("Concat", y, second, axis=-1)

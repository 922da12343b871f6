"""Look-alikes by what is normalised: numerator, root, groups, parts."""

from __future__ import annotations

import numpy as np

from .alike import Alike, look_alike

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
    return a.chain(x, square=lambda _: a.square(centred))


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


@look_alike(most=1)
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


@look_alike(norms=2)
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


def _part(a: Alike, start: int, end: int, step: int = 1) -> str:
    x = a.input(shape=(8, 8))
    bounds = [a.g.ints(value) for value in (start, end, -1, step)]
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
        square=lambda _: a.square(first),
        mean=lambda v: a.g.op("Div", a.g.reduce("ReduceSum", v, [-1], 1), a.scalar(8.0)),
    )


@look_alike()
def part_is_the_second_of_a_split(a: Alike) -> str:
    x = a.input()
    second = a.g.ops("Split", x, a.g.ints(4, 4), count=2, axis=-1)[1]
    return a.chain(x, square=lambda _: a.square(second))


@look_alike()
def part_ends_at_an_input(a: Alike) -> str:
    x = a.input()
    end = a.input("end", values=np.array([3]), dtype=7)
    first = a.g.op("Slice", x, a.g.ints(0), end, a.g.ints(-1))
    return a.chain(x, square=lambda _: a.square(first))


@look_alike(norms=1)
def part_is_normalised_alone(a: Alike) -> str:
    """The first 4 elements, normalised by themselves, in front of the others."""
    x = a.input()
    first, second = a.g.ops("Split", x, a.g.ints(4, 4), count=2, axis=-1)
    y = a.chain(first, weight=a.weight((4,)))
    return a.g.op("Concat", y, second, axis=-1)

"""Look-alikes by what is normalised: numerator, root, groups, parts."""

from __future__ import annotations

import numpy as np

from .alike import Alike, Body, look_alike, look_alikes
from .steps import OTHER, VALUE, Made, Steps, X, fed, mean, op, replaced, shaped, then, total

# numerator and square

_OVER_ROOT = {"divide": op("Div", OTHER, VALUE)}


def _centred(a: Alike) -> str:
    return a.g.op("Sub", a.x, a.mean(a.x))


replaced(
    numerator_is_another_tensor={"other": fed("other"), **_OVER_ROOT},
    # The root of x, used after x became x + r.
    numerator_is_the_next_hidden_state={
        "other": lambda a: a.g.op("Add", a.x, a.input("residual")),
        **_OVER_ROOT,
    },
    numerator_is_transposed={
        "row": shaped(8, 8),
        "other": lambda a: a.g.op("Transpose", a.x, perm=[1, 0]),
        **_OVER_ROOT,
    },
    # Centred above, not below.
    numerator_is_centred={"other": _centred, **_OVER_ROOT},
    # The standard deviation instead of the root mean square: centred below, not above.
    variance_below={"other": _centred, "square": lambda a, _: a.square(a.other)},
    # The variance, computed the other way.
    mean_square_minus_square_of_mean={
        "mean": then(mean, op("Sub", lambda a: a.square(a.mean(a.x)))),
    },
    square_of_the_positive_part={"square": then(op("Relu"), Alike.square)},
    # rms(x * w) below x.
    square_of_the_weighted={"first": Alike.weight, "square": then(op("Mul", OTHER), Alike.square)},
    two_mean_squares={
        "other": fed("other"),
        "mean": then(mean, op("Add", lambda a: a.mean(a.square(a.other)))),
    },
    multiplied_with_the_root={"divide": op("Mul", X, VALUE)},
    divided_by_the_inverse={"divide": then(op("Reciprocal"), op("Div", X, VALUE))},
    root_over_numerator={"divide": op("Div", X)},
    where_in_the_middle={
        "other": lambda a: a.input("mask", values=np.array([[[1], [0], [1]]]), dtype=9),
        "root": then(Alike.root, op("Where", OTHER, VALUE, 1.0)),
    },
)

replaced(
    most=1,
    square_of_absolutes={"square": then(op("Abs"), Alike.square)},
    # Half of a norm with a quarter of its epsilon.
    square_of_the_double={"square": then(op("Mul", 2.0), Alike.square)},
    two_over_root={"divide": then(op("Div", 2.0, VALUE), op("Mul", X, VALUE))},
    expanded_root={
        "other": lambda a: a.g.op("Shape", a.x),
        "root": then(Alike.root, op("Expand", OTHER)),
    },
)


replaced(
    most=1,
    refusal=False,
    # LayerNorm: RMSNorm of the centred tensor would be right, LayerNormalization is better.
    layer_norm={"row": lambda a: a.g.op("Sub", x := a.input(), a.mean(x))},
)

# Dropout in inference does nothing, and no exporter writes it there.
replaced(most=1, refusal=True, dropout_in_the_middle={"root": then(Alike.root, op("Dropout"))})


def _magnitudes(hint: str = "x") -> Made:
    return lambda a: a.input(hint, values=np.abs(a.rng.standard_normal((2, 3, 8))))


replaced(
    refusal=False,
    product_of_two_tensors={
        "row": _magnitudes(),
        "other": _magnitudes("other"),
        "square": op("Mul", OTHER),
    },
)

replaced(
    norms=1,
    # A weightless norm of x * w; w is not its gain.
    weighted_first_then_normalised={
        "row": lambda a: a.g.op("Mul", a.input(), a.weight()),
        "weight": "",
    },
)


def _root(a: Alike, x: str) -> str:
    return a.root(a.stabilise(a.mean(a.square(x))))


# Root mean square pooling.
look_alikes(root_is_the_output=lambda a: _root(a, a.input()))


@look_alike(norms=1, refusal=False)
def root_divides_another_tensor_too(a: Alike) -> list[str]:
    x, other = a.input(), a.input("other")
    root = _root(a, x)
    return [a.g.op("Div", x, root), a.g.op("Div", other, root)]


@look_alike(norms=2)
def one_root_two_weights(a: Alike) -> list[str]:
    y = a.chain(a.input(), weight="")
    return [a.g.op("Mul", y, a.weight()), a.g.op("Mul", a.weight(), y)]


# groups and parts


def _groups(
    *split: int,
    joined: tuple[int, ...] = (2, 3, 8),
    turned: bool = False,
    own_weight: tuple[int, ...] = (),
    one_weight: bool = False,
) -> Body:
    """[2, 3, 8] as groups, normalised, and joined again."""

    def turn(a: Alike, x: str) -> str:
        return a.g.op("Transpose", x, perm=[0, 1, 3, 2]) if turned else x

    def body(a: Alike) -> str:
        rows = turn(a, a.g.op("Reshape", a.input(), a.g.ints(*split)))
        y = turn(a, a.chain(rows, weight=a.weight(split[-1:]) if one_weight else ""))
        y = a.g.op("Mul", y, a.weight(own_weight)) if own_weight else y
        y = a.g.op("Reshape", y, a.g.ints(*joined))
        return y if own_weight or one_weight else a.g.op("Mul", y, a.weight())

    return body


look_alikes(
    norms=1,
    # Rows of 6 that are no part of a row of 8.
    groups_cross_tokens=_groups(2, 4, 6),
    # Interleaved groups: split, then turned, before the norm and back after it.
    groups_of_transposed=_groups(2, 3, 4, 2, turned=True),
    # The same number of elements, other rows.
    groups_not_put_back_together=_groups(2, 3, 2, 4, joined=(3, 2, 8)),
    # A weight of [g, s] inside: the gain of the whole row, or a core and a product.
    groups_with_their_own_weight=_groups(2, 3, 2, 4, own_weight=(2, 4)),
    # A weight of [s], the same for every group.
    groups_with_one_weight_for_each=_groups(2, 3, 2, 4, one_weight=True),
)


@look_alike()
def groups_below_not_above(a: Alike) -> str:
    """The root of groups below a numerator that is grouped another way."""
    x = a.input(shape=(2, 3, 16))
    below = a.g.op("Reshape", x, a.g.ints(2, 3, 4, 4))
    turned = a.g.op("Transpose", below, perm=[0, 1, 3, 2])
    return a.chain(below, divide=lambda v: a.g.op("Div", turned, v), weight="")


def _part(*bounds: int) -> Steps:
    """The squares of a slice: start, end, axis and step."""
    return {
        "row": shaped(8, 8),
        "other": lambda a: [a.g.ints(value) for value in bounds],
        "square": lambda a, v: a.square(a.g.op("Slice", v, *a.other)),
    }


_OF_OTHER = {"square": lambda a, _: a.square(a.other)}

replaced(
    part_is_not_the_first=_part(4, 8, -1, 1),
    part_from_the_end=_part(-4, 1_000_000, -1, 1),
    part_skips=_part(0, 8, -1, 2),
    # From element 3 down to 0: the same sum, but nobody should rely on it.
    part_is_reversed=_part(7, 3, -1, -1),
    # The first row for all rows.
    part_of_another_axis=_part(0, 1, 0),
    # The sum of the first 4, divided by 8.
    part_counted_as_the_whole={
        "other": lambda a: a.g.op("Slice", a.x, a.g.ints(0), a.g.ints(4), a.g.ints(-1)),
        "mean": then(total, op("Div", 8.0)),
        **_OF_OTHER,
    },
    part_is_the_second_of_a_split={
        "other": lambda a: a.g.ops("Split", a.x, a.g.ints(4, 4), count=2, axis=-1)[1],
        **_OF_OTHER,
    },
)

replaced(
    most=1,
    part_is_the_whole=_part(0, 1_000_000, -1, 1),
    part_ends_before_the_end=_part(0, -3, -1, 1),
)


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

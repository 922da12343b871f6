"""Look-alikes by the shapes that they stand between."""

from __future__ import annotations

from .alike import FLOAT, Alike, look_alike, look_alikes
from .steps import OTHER, op, replaced, shaped, then, total


@look_alike()
def positive_axis_of_unknown_rank(a: Alike) -> str:
    """Axis 1 is the last one of a matrix; this is fed with rank 3."""
    x = a.unranked(shape=(2, 8, 8))
    y = a.chain(x, mean=lambda v: a.g.reduce("ReduceMean", v, [1], 1), weight="")
    return a.ranked(y, (2, 8, 8))


def _count(a: Alike) -> str:
    return a.g.cast(a.g.op("Gather", a.g.op("Shape", a.x), a.g.ints(-1)), FLOAT)


replaced(norms=1, no_rows={"row": shaped(0, 3, 8)})
replaced(
    most=1,
    # 1/n computed in the graph.
    count_from_the_shape={"other": _count, "mean": then(total, op("Div", OTHER))},
)
replaced(most=1, refusal=False, rows_without_elements={"row": shaped(2, 3, 0), "weight": ""})
replaced(
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

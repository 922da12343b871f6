"""Shapes as text and as values, the default grid, and what does not fit."""

from __future__ import annotations

import pytest

from rmsnorm_export.benchmark.shapes import Shapes, grid
from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.input_sizes import Declared


def declared(**shapes: tuple[int | str | None, ...]) -> dict[str, Declared]:
    return {name: Declared(name, "float32", shape) for name, shape in shapes.items()}


DECODER = declared(ids=("batch", "seq"), mask=("batch", "past + seq"), past=("batch", 2, "past", 8))


def test_the_default_is_a_grid_of_batch_and_length() -> None:
    points = grid(declared(ids=("batch", "seq"), mask=("batch", "seq")), None)
    assert [label for label, _ in points] == ["ids=1x16", "ids=1x128", "ids=4x128"]
    assert points[2][1] == {"ids": (4, 128), "mask": (4, 128)}


@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        ((3, 4), ["fixed shapes"]),
        (("batch", 3, 8, 8), ["x=1x3x8x8", "x=4x3x8x8"]),
        (("seq_len", "batch"), ["x=16x1", "x=128x1", "x=128x4"]),
        ((None, None, 8), ["x=1x16x8", "x=1x128x8", "x=4x128x8"]),
    ],
)
def test_the_default_for_other_inputs(
    shape: tuple[int | str | None, ...], labels: list[str]
) -> None:
    assert [label for label, _ in grid(declared(x=shape), None)] == labels


@pytest.mark.parametrize(
    "shapes",
    [
        "ids=1x1,4x3;past=1x2x7x8,4x2x0009x8",
        {"ids": [(1, 1), (4, 3)], "past": [(1, 2, 7, 8), (4, 2, 9, 8)]},
    ],
)
def test_shapes_that_belong_together(shapes: Shapes) -> None:
    points = grid(DECODER, shapes)
    assert [point for _, point in points] == [
        {"ids": (1, 1), "mask": (1, 8), "past": (1, 2, 7, 8)},
        {"ids": (4, 3), "mask": (4, 12), "past": (4, 2, 9, 8)},
    ]


def test_one_shape_goes_with_all() -> None:
    points = grid(declared(a=("n",), b=("m", 2)), {"a": (3,), "b": [(1, 2), (5, 2)]})
    assert [point for _, point in points] == [{"a": (3,), "b": (1, 2)}, {"a": (3,), "b": (5, 2)}]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (None, "'past'"),
        ("ids=1x1", "'past'"),
        ("ids=1x1;nope=3", "no input 'nope'"),
        ("ids=1x1,2x2;past=1x2x1x8,1x2x1x8,1x2x1x8", "do not go together"),
        ("ids=1", "does not fit"),
        ("ids=1x1;past=1x3x1x8", "does not fit"),
        ("ids=axb", "cannot be read"),
        ("ids=1x0", "cannot be read"),
        ("ids=1x-1", "cannot be read"),
        ("1x1", "cannot be read"),
        ("ids=1x1;ids=1x1", "twice"),
        (" ; ", "cannot be read"),
        ({"ids": [(1, 0)]}, "cannot be read"),
        ({"ids": [(True, 1)]}, "cannot be read"),
        ("ids=1x999999;past=1x2x999999999x8", "too large"),
        ("ids=" + ",".join(f"1x{n}" for n in range(1, 40)), "do not go together"),
    ],
)
def test_what_cannot_be_used(shapes: Shapes | None, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        grid(DECODER, shapes)
    assert words in str(caught.value)
    assert caught.value.fix

"""One grammar of sizes: what can be written, what follows from names, and what is suggested."""

from __future__ import annotations

from typing import Any

import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.sizes import (
    POINTS,
    Declared,
    Dims,
    Shape,
    Shapes,
    Size,
    Use,
    input_shapes,
    read,
    size_of,
    size_points,
    size_profiles,
)
from tests.tools.tables import table

Inputs = dict[str, tuple[Size, ...]]
Points = list[dict[str, Shape]]

NAMED: Inputs = {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")}
FIXED: Inputs = {"x": (2, 3)}
SUMS: Inputs = {
    "ids": ("batch", "sequence"),
    "mask": ("batch", "past + sequence"),
    "past": ("batch", 2, "past", 8),
    "wide": ("2*sequence", "floor(sequence/2) + 1"),
}


def declared(inputs: Inputs) -> dict[str, Declared]:
    return {name: Declared(name, "float32", shape) for name, shape in inputs.items()}


def build(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    """The smallest, usual and largest shapes, as for ``build`` and ``package``."""
    (profile,) = size_profiles(declared(inputs), shapes, dims)
    return [*profile]


def bench(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    return [point for _, point in size_points(declared(inputs), shapes, dims, POINTS)]


def verify(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    return [input_shapes(declared(inputs), shapes, dims, sizes=(2, 3, 5))]


@pytest.mark.parametrize(
    "shapes",
    ["ids=1x16,4x128;mask=4x128", " ids = 1x16 , 4x128 ; mask=4x128; ",
     ("ids=1x16,4x128", {"mask": (4, 128)}), {"ids": ([1, 16], [4, 128]), "mask": [[4, 128]]}],
)  # fmt: skip
def test_shapes_by_input(shapes: Shapes) -> None:
    rows = {name: rows for (_, name), rows in read(shapes, None, Use(most_points=8)).items()}
    assert rows == {"ids": ((1, 16), (4, 128)), "mask": ((4, 128),)}


@pytest.mark.parametrize(
    "dims",
    ["batch=1,4,8 sequence=128", " batch = 1, 4, 8 \n sequence=128;",
     ["batch=1,4,8", "sequence=128"], {"batch": (1, 4, 8), "sequence": 128}],
)  # fmt: skip
def test_sizes_by_dimension(dims: Dims) -> None:
    expected = [{"ids": (size, 128), "mask": (size, 128)} for size in (1, 4, 8)]
    assert bench(NAMED, None, dims) == build(NAMED, None, dims) == expected


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [("batch=4", (4, 4, 4)), ("batch=1..8", (1, 8, 8)), ("batch=1 .. 8", (1, 8, 8)),
     ({"batch": (1, 4, 8)}, (1, 4, 8))],
)  # fmt: skip
def test_ranges(dims: Dims, sizes: Shape) -> None:
    assert build({"x": ("batch", 3)}, None, dims) == [{"x": (size, 3)} for size in sizes]
    text = "x=" + ",".join(f"{size}x3" for size in sizes)
    assert build({"x": (-1, 3)}, text) == build({"x": ("batch", 3)}, None, dims)


def test_sums_and_products_are_computed_from_names() -> None:
    shapes = {"ids": (4, 6), "mask": (4, 9), "past": (4, 2, 3, 8), "wide": (12, 4)}
    for command in (build, bench, verify):
        assert command(SUMS, None, "batch=4 sequence=6 past=3")[0] == shapes
        assert command(SUMS, "past=4x2x3x8", "sequence=6")[0] == shapes
        assert command(SUMS, "past=4x2x3x8;ids=4x6")[-1] == shapes
    only_here: Inputs = {"ids": ("n",), "mask": ("past + n",)}
    assert bench(only_here, None, "n=2 past=3") == [{"ids": (2,), "mask": (5,)}]
    assert bench(only_here, None, "n=2; past + n=7") == [{"ids": (2,), "mask": (7,)}]
    assert bench(SUMS, "mask=1x20", "batch=1 sequence=6 past=3")[0]["mask"] == (1, 20)


@pytest.mark.parametrize(
    ("size", "value"),
    [
        ("n + m", 10), ("2*n - m", 11), ("n // m", 2), ("floor(n/2 - 1/2) + 1", 4),
        ("Max(1, m - n)", 1), ("Max(1, zero)", 1), ("n/2", None), ("m - n", None),
        ("n/(m - 3)", None), ("n.m", None), ("other", None), ("open(n)", None),
        ("n**m", None),  # as is a power that does not fit into memory
        ("+".join("n" * 200), None), ("(" * 150 + "n", None),
        ("Max(" + ",".join(f"n*m - {i}" for i in range(18)) + ")", 21),  # slow if simplified
        (5, 5), (None, 9),
    ],
)  # fmt: skip
def test_expressions(size: Size, value: int | None) -> None:
    assert size_of(size, 4, {"n": 7, "m": 3, "zero": 0, 4: 9}) == value


def test_what_is_left_gets_sizes_in_turn() -> None:
    odd = declared({"a": ("batch", "n", None, "odd name"), "b": ("m", "n + m")})
    sizes = input_shapes(odd, None, "batch=8", sizes=(2, 3, 5))
    assert sizes == {"a": (8, 2, 3, 5), "b": (5, 7)}
    model = declared(NAMED | {"free": (None, "other"), "rest": (None, "new")})
    usual = {"ids": (4, 64), "mask": (4, 64), "free": (7, 9)}
    assert input_shapes(model, {"ids": (1, 8)}, usual=usual, sizes=(2,)) == {
        "ids": (1, 8), "mask": (1, 8), "free": (7, 9), "rest": (2, 2),
    }  # fmt: skip
    assert bench({"a": (None, None), "b": (None, None)}, "a=2x3")[0]["b"] == (2, 3)
    assert build(FIXED, None) == build(FIXED, {}) == [FIXED] * 3
    assert verify(NAMED, "ids=0x4")[0]["mask"] == (0, 4)


def test_a_mask_of_another_length_covers_the_cache_and_the_tokens() -> None:
    """Its rows and length have names of their own: transformers' exporter, genai's builder."""
    shapes: Inputs = {"input_ids": ("b", 1), "attention_mask": ("c", "all")}
    cached = shapes | {"keys": ("b", 2, "past", 16), "values": ("b", 2, "past", 16)}
    for dims, mask in {None: (2, 4), "all=7": (2, 7), "b=4 past=5": (4, 6)}.items():
        assert verify(cached, None, dims)[0]["attention_mask"] == mask
    assert bench(cached, None, "b=4 past=5")[0]["attention_mask"] == (4, 6)
    prompt: Inputs = {"input_ids": ("b", "s"), "attention_mask": ("b", "past + seq")}
    assert verify(prompt, None)[0]["attention_mask"] == (2, 3)
    two = shapes | {"own": ("b", 2, "past", 16), "of_encoder": ("b", 2, "n", 16)}
    assert verify(two, None)[0]["attention_mask"] == (3, 5)


REFUSED: dict[str, Any] = table(__file__)
COMMANDS = {"both": (bench, build), "point": (bench,), "range": (build,), "compared": (verify,)}


@pytest.mark.parametrize(
    ("kind", "sizes", "words"), [(kind, *case) for kind, rows in REFUSED.items() for case in rows]
)
def test_what_does_not_fit(kind: str, sizes: dict[str, Any], words: str) -> None:
    for command in COMMANDS[kind]:
        with pytest.raises(UsageError) as caught:
            command(NAMED, **{"shapes": None} | sizes)
        assert words in str(caught.value)


def test_what_a_model_says_is_kept() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        build(FIXED, "x=2x4")
    with pytest.raises(UsageError, match="'b'"):  # a range is not guessed for what has no name
        build({"a": (None, None), "b": (None, None)}, "a=2x3")

"""One grammar of sizes: what can be written, what follows from names, and what is suggested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.sizes import POINTS as BENCH
from rmsnorm_export.runtime.sizes import (
    Declared,
    Dims,
    InputSizes,
    Shape,
    Shapes,
    Size,
    Use,
    fill,
    input_shapes,
    read,
    size_of,
)
from rmsnorm_export.tensorrt.engine.model import make_profiles

Inputs = dict[str, tuple[Size, ...]]
Points = list[dict[str, Shape]]

POINTS = Use(most_points=8)

NAMED: Inputs = {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")}
UNNAMED: Inputs = {"x": (None, None, 8), "y": ("", 3), "z": (-1,)}
SUMS: Inputs = {
    "ids": ("batch", "sequence"),
    "mask": ("batch", "past + sequence"),
    "past": ("batch", 2, "past", 8),
    "wide": ("2*sequence", "floor(sequence/2) + 1"),
}


def build(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    """The smallest, usual and largest shapes, as for ``build`` and ``package``."""
    items = [Declared(name, "int64", shape) for name, shape in inputs.items()]
    (profile,) = make_profiles(items, shapes, dims)
    return [
        {item.name: getattr(item, at) for item in profile.inputs} for at in ("min", "opt", "max")
    ]


def declared(inputs: Inputs) -> dict[str, Declared]:
    return {name: Declared(name, "float32", shape) for name, shape in inputs.items()}


def bench(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    sizes = InputSizes(declared(inputs).values(), BENCH)
    return [point for _, point in sizes.points(shapes, dims)]


def verify(inputs: Inputs, shapes: Shapes | None, dims: Dims | None = None) -> Points:
    return [input_shapes(declared(inputs), shapes, dims, usual={}, sizes=(2, 3, 5))]


COMMANDS: dict[str, Callable[..., Points]] = {"build": build, "bench": bench, "verify": verify}


@pytest.mark.parametrize(
    "shapes",
    [
        "ids=1x16,4x128;mask=4x128",
        " ids = 1x16 , 4x128 ; mask=4x128; ",
        "ids=1x16,4x128 mask=4x128",
        ["ids=1x16,4x128", "mask=4x128"],
        ("ids=1x16,4x128", {"mask": (4, 128)}),
        {"ids": [(1, 16), (4, 128)], "mask": (4, 128)},
        {"ids": ([1, 16], [4, 128]), "mask": [[4, 128]]},
    ],
)
def test_shapes_by_input(shapes: Shapes) -> None:
    given = {name: rows for (_, name), rows in read(shapes, None, POINTS).items()}
    assert given == {"ids": ((1, 16), (4, 128)), "mask": ((4, 128),)}


@pytest.mark.parametrize(
    "dims",
    [
        "batch=1,4,8 sequence=128",
        "batch=1,4,8;sequence=128",
        " batch = 1, 4, 8 \n sequence=128;",
        ["batch=1,4,8", "sequence=128"],
        {"batch": (1, 4, 8), "sequence": 128},
        [{"batch": [1, 4, 8]}, "sequence=128"],
    ],
)
def test_sizes_by_dimension(dims: Dims) -> None:
    assert bench(NAMED, None, dims) == [
        {"ids": (size, 128), "mask": (size, 128)} for size in (1, 4, 8)
    ]
    assert build(NAMED, None, dims) == bench(NAMED, None, dims)


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        ("batch=4", (4, 4, 4)),
        ("batch=1,8", (1, 8, 8)),
        ("batch=1..8", (1, 8, 8)),
        ("batch=1 .. 8", (1, 8, 8)),
        ("batch=1,4,8", (1, 4, 8)),
        ({"batch": (1, 8)}, (1, 8, 8)),
        ({"batch": 4}, (4, 4, 4)),
    ],
)
def test_ranges_by_dimension(dims: Dims, sizes: Shape) -> None:
    assert build({"x": ("batch", 3)}, None, dims) == [{"x": (size, 3)} for size in sizes]


def test_a_range_by_input() -> None:
    assert build(NAMED, "ids=1..8x16") == build(NAMED, "ids=1x16,8x16,8x16")


def test_sums_and_products_are_computed_from_names() -> None:
    shapes = {"ids": (4, 6), "mask": (4, 9), "past": (4, 2, 3, 8), "wide": (12, 4)}
    for command in COMMANDS.values():
        assert command(SUMS, None, "batch=4 sequence=6 past=3")[0] == shapes
        assert command(SUMS, "past=4x2x3x8", "sequence=6")[0] == shapes
        assert command(SUMS, "past=4x2x3x8;ids=4x6")[-1] == shapes
    only_here: Inputs = {"ids": ("n",), "mask": ("past + n",)}
    assert bench(only_here, None, "n=2 past=3") == [{"ids": (2,), "mask": (5,)}]
    assert bench(only_here, None, {"n": 2, "past + n": 7}) == [{"ids": (2,), "mask": (7,)}]
    assert bench(only_here, None, "n=2; past + n=7") == [{"ids": (2,), "mask": (7,)}]


@pytest.mark.parametrize(
    ("size", "value"),
    [
        ("n", 7),
        ("n + m", 10),
        ("2*n - m", 11),
        ("n // m", 2),
        ("floor(n/2 - 1/2) + 1", 4),
        ("ceiling(n/2)", 4),
        ("Max(1, m - n)", 1),
        ("n/2", None),
        ("m - n", None),
        ("n/(m - 3)", None),
        ("n**m", None),
        ("n.m", None),
        ("other", None),
        ("open(n)", None),
        ("+".join("n" * 200), None),
        ("(" * 150 + "n", None),
        (5, 5),
        (None, 9),
    ],
)
def test_expressions(size: Size, value: int | None) -> None:
    assert size_of(size, 4, {"n": 7, "m": 3, 4: 9}) == value


def test_what_is_left_gets_sizes_in_turn() -> None:
    known: dict[str | int, int] = {"batch": 8}
    fill(known, [("batch", "n", None, "odd name"), ("m", "n + m")], (2, 3, 5))
    assert known == {"batch": 8, "n": 2, 2: 3, "m": 5, "odd name": 5}


def test_both_ways_together() -> None:
    assert bench(SUMS, "mask=1x20", "batch=1 sequence=6 past=3")[0]["mask"] == (1, 20)
    for command, dims in ((bench, "batch=4"), (build, "batch=1,4,8")):
        with pytest.raises(UsageError, match="'batch' has two sizes"):
            command(NAMED, "ids=1x16", dims)


def test_dimensions_without_a_name() -> None:
    two: Inputs = {"a": (None, None), "b": (None, None)}
    assert bench(two, "a=2x3") == [{"a": (2, 3), "b": (2, 3)}]
    with pytest.raises(UsageError, match="'b'"):
        build(two, "a=2x3")
    assert build({"any": (-1, 2)}, "any=1x2,3x2,4x2")[1] == {"any": (3, 2)}


def test_verify_keeps_to_usual_shapes_where_nothing_is_said() -> None:
    model = declared(NAMED | {"free": (None, "other"), "rest": (None, "new")})
    usual = {"ids": (4, 64), "mask": (4, 64), "free": (7, 9)}
    assert input_shapes(model, {"ids": (1, 8)}, usual=usual, sizes=(2,)) == {
        "ids": (1, 8), "mask": (1, 8), "free": (7, 9), "rest": (2, 2),
    }  # fmt: skip
    assert input_shapes(model, None, usual=usual, sizes=(2,)) == usual | {"rest": (2, 2)}


@pytest.mark.parametrize(
    ("shapes", "dims", "words"),
    [
        ("idz=1x1", None, ("no input 'idz'", "'ids'")),
        (None, "bach=1", ("no dimension 'bach'", "[batch, sequence]")),
        ("ids=1", None, ("does not fit input 'ids'", "rank", "[batch, sequence]")),
        (None, "batch=9999999999 sequence=1", ("too large", "9999999999")),
        (None, "batch=1", ("dynamic sizes need", "'ids'")),
        (None, "batch=1x2", ("cannot be read", "batch")),
        (None, "batch", ("--dims cannot be read",)),
        (None, "=1", ("--dims cannot be read", "'=1'")),
        (None, "batch=a sequence=1", ("cannot be read", "batch=a")),
        (None, "batch=1 batch=1", ("twice", "batch")),
        (None, "", ("--dims cannot be read",)),
        (None, {"batch": -1}, ("cannot be read", "batch=-1")),
        (None, {"batch": 1.5}, ("cannot be read", "batch=1.5")),
        (None, {"batch": "4"}, ("cannot be read",)),
        (None, {"batch": ()}, ("cannot be read",)),
        ("ids=1x;mask=1x1", None, ("--shapes cannot be read", "'ids=1x")),
        ("ids=1x1;mask=2x1", None, ("'batch' has two", "'mask'")),
        ("ids=" + "9" * 30, None, ("cannot be read",)),
    ],
)
@pytest.mark.parametrize("command", ["build", "bench"])
def test_what_does_not_fit(
    command: str, shapes: Shapes | None, dims: Dims | None, words: Sequence[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        COMMANDS[command](NAMED, shapes, dims)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("command", "shapes", "dims", "words"),
    [
        (bench, None, "batch=1..8 sequence=1", "cannot be read"),
        (bench, None, "batch=1,2,3 sequence=1,2", "do not go together"),
        (bench, None, "batch=0 sequence=1", "cannot be read"),
        (build, "ids=1x1,2x2", None, "cannot be read"),
        (build, None, "batch=1,2,3,4", "cannot be read"),
        (build, None, "batch=4,2,8 sequence=1", "min <= opt <= max"),
        (verify, "ids=1x1,2x2", None, "do not go together"),
    ],
)
def test_what_only_points_or_only_ranges_take(
    command: Callable[..., Points], shapes: str | None, dims: str | None, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        command(NAMED, shapes, dims)
    assert words in str(caught.value)


def test_a_model_of_fixed_sizes_needs_nothing() -> None:
    fixed: Inputs = {"x": (2, 3)}
    assert build(fixed, None) == [{"x": (2, 3)}] * 3
    assert build(fixed, {}) == [{"x": (2, 3)}] * 3
    with pytest.raises(UsageError, match="does not fit"):
        build(fixed, "x=2x4")
    assert verify(NAMED, "ids=0x4")[0]["mask"] == (0, 4)

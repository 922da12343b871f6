"""Optimization profiles: what can be written, and what does not fit the model."""

from __future__ import annotations

import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.tensorrt.engine.result import InputRange
from rmsnorm_export.tensorrt.engine.shapes import make_profiles

IDS = Declared("ids", "int64", ("batch", "seq"))
MASK = Declared("mask", "int64", ("batch", None))
FIXED = Declared("x", "float32", (2, 3))
SCALAR = Declared("s", "float32", ())
ANY = Declared("any", "float32", None)


def test_smallest_usual_largest() -> None:
    (profile,) = make_profiles([IDS, FIXED, SCALAR], "ids=1x1,4x128,8x2048")
    assert profile.inputs == (
        InputRange("ids", "int64", (1, 1), (4, 128), (8, 2048)),
        InputRange("x", "float32", (2, 3), (2, 3), (2, 3)),
        InputRange("s", "float32", (), (), ()),
    )


def test_several_inputs_and_profiles() -> None:
    one, two = make_profiles(
        [IDS, MASK], ["ids=1x1,4x8,8x9; mask=1x1,4x2,8x3", "ids=16x16;mask=16x5"]
    )
    assert one.inputs[1] == InputRange("mask", "int64", (1, 1), (4, 2), (8, 3))
    assert [item.opt for item in two.inputs] == [(16, 16), (16, 5)]
    assert [item.min for item in two.inputs] == [(16, 16), (16, 5)]


def test_the_same_from_python() -> None:
    written = make_profiles([IDS], "ids=1x1,4x128,8x2048")
    assert make_profiles([IDS], {"ids": [(1, 1), (4, 128), (8, 2048)]}) == written
    assert make_profiles([IDS], [{"ids": ((1, 1), (4, 128), (8, 2048))}]) == written
    assert make_profiles([IDS], {"ids": [4, 8]}) == make_profiles([IDS], "ids=4x8")
    assert make_profiles([FIXED], None)[0].inputs[0].max == (2, 3)
    assert make_profiles([FIXED, SCALAR], {"x": (2, 3), "s": ()})[0].inputs[1].max == ()


def test_a_name_may_hold_an_equals_sign() -> None:
    (profile,) = make_profiles([Declared("a=b", "int64", (None, 2))], "a=b=1x2")
    assert profile.inputs == (InputRange("a=b", "int64", (1, 2), (1, 2), (1, 2)),)


def test_zero_is_a_smallest_size_only() -> None:
    assert make_profiles([IDS], "ids=0x1,4x8,8x8")[0].inputs[0].min == (0, 1)
    with pytest.raises(UsageError, match="usual"):
        make_profiles([IDS], "ids=0x1,0x8,8x8")


@pytest.mark.parametrize(
    ("inputs", "shapes", "words"),
    [
        ([IDS], "idz=1x1", ("no input 'idz'", "'ids' int64 [batch, seq]")),
        ([IDS], None, ("need a range", "'ids'", "ids=1x1,4x4,8x8")),
        ([IDS, MASK], "ids=1x1", ("need a range", "'mask' int64 [batch, ?]")),
        ([IDS], "ids=1x1x1", ("rank", "[batch, seq]")),
        ([IDS], "ids=1x1,4x128x1,8x2048", ("rank",)),
        ([FIXED], "x=2x4", ("Dimension 1 is 3", "2x4")),
        ([FIXED], "x=1x3,2x3,2x3", ("Dimension 0 is 2",)),
        ([IDS], "ids=4x1,2x1,8x1", ("min <= opt <= max", "4, 2, 8")),
        ([IDS], "ids=1x1,9x1,8x1", ("min <= opt <= max", "1, 9, 8")),
        ([IDS], "ids=1x1,4x1", ("2 shapes",)),
        ([IDS], "ids=1x1;ids=1x2", ("twice", "ids")),
        ([IDS], "ids=1xa", ("cannot be read", "1xa")),
        ([IDS], "ids=1x-1", ("cannot be read",)),
        ([IDS], "ids=", ("cannot be read",)),
        ([IDS], "ids", ("names no input",)),
        ([IDS], " ; ", ("no input",)),
        ([IDS], "ids=1x1,1x1,1x99999999999", ("out of range",)),
        ([IDS, MASK], "ids=1x1,2x1,3x1;mask=1x1,2x1,4x1", ("'batch' has two ranges", "1,2,4")),
        ([IDS], {"ids": [(1, 1), (2, "4"), (8, 8)]}, ("numbers",)),
        ([IDS], {"ids": 4}, ("rank",)),
        ([ANY], None, ("unknown rank",)),
    ],
)
def test_what_does_not_fit(inputs: list[Declared], shapes: object, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        make_profiles(inputs, shapes)  # type: ignore[arg-type]
    text = str(caught.value)
    for word in words:
        assert word in text
    assert caught.value.fix


def test_the_example_of_the_message_works() -> None:
    with pytest.raises(UsageError) as caught:
        make_profiles([IDS, MASK], None)
    example = caught.value.fix.split('"')[1]
    assert make_profiles([IDS, MASK], example)[0].inputs[0].max == (8, 8)

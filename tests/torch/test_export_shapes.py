"""``--shapes``: what it means, and what is said of what cannot be read."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.torch.source.example import dynamic_shapes, example, parse_shapes


def test_types_sizes_and_ranges():
    ids, mask, image = parse_shapes(
        "ids=int64[batch=1..8, seq=1..2048]; mask=bool[batch,seq];image=f16[2,channels=3,8]"
    )
    assert (ids.name, ids.dtype, ids.shape) == ("ids", torch.int64, (2, 3))
    assert mask.shape == ids.shape
    assert mask.sizes == ids.sizes
    assert (image.dtype, image.shape) == (torch.float16, (2, 3, 8))
    assert [size.dynamic for size in image.sizes] == [False, False, False]
    dims = dynamic_shapes((ids, mask, image))
    assert dims["ids"][0] is dims["mask"][0]
    assert (dims["ids"][0].__name__, dims["ids"][0].min, dims["ids"][0].max) == ("batch", 1, 8)
    assert dims["image"] == {}


def test_ranges_by_dimension():
    text = "ids=int64[batch,seq];x=fp16[batch,96]"
    given = parse_shapes(text, "batch=1..8 seq=16")
    assert given == parse_shapes("ids=i64[batch=1..8,seq=16];x=float16[batch,96]")
    assert parse_shapes(text, {"batch": (1, 8), "seq": 16}) == given
    for dims in ("bach=1..8", "batch=8..1"):
        with pytest.raises(UsageError, match=dims.partition("=")[0]):
            parse_shapes(text, dims)
    with pytest.raises(UsageError, match="two ranges"):
        parse_shapes("x=f32[n=1..4]", "n=1..8")


def test_examples_are_in_range_and_of_other_sizes_when_asked():
    inputs = parse_shapes("ids=int32[batch=1..2,seq=3..];attention_mask=int64[batch,seq];x=bf16[4]")
    made = example(inputs, seed=3, limit=7)
    assert made["ids"].dtype == torch.int32
    assert 0 <= made["ids"].min() <= made["ids"].max() < 7
    assert (made["attention_mask"] == 1).all()
    assert made["x"].dtype == torch.bfloat16
    assert torch.equal(example(inputs, seed=3, limit=7)["ids"], made["ids"])
    other = example(inputs, seed=3, limit=7, largest=24)
    assert other["ids"].shape != made["ids"].shape
    assert other["ids"].shape[0] <= 2
    assert other["ids"].shape == other["attention_mask"].shape


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no input"]),
        ("ids=int64[2", ["ids=int64[2"]),
        ("ids=int63[2]", ["int63", "int64", "'ids'"]),
        ("ids=int64[2,x y]", ["'x y'", "'ids'"]),
        ("ids=int64[0]", ["empty", "0"]),
        ("ids=int64[b=5..4]", ["'b'", "5..4"]),
        ("ids=int64[b=1..4,b=1..5]", ["b=1..4", "b=1..5"]),
        ("ids=int64[2];ids=int64[2]", ["twice", "ids"]),
    ],
)
def test_what_cannot_be_read_is_named(text, words):
    with pytest.raises(UsageError) as caught:
        parse_shapes(text)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.fix

"""``--shapes``: what it means, and what is said of what cannot be read."""

from __future__ import annotations

import pytest
import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.torch.source.example import Loaded, example_of, parse_shapes, random_inputs

TEXT = "ids=int64[batch=1..8, seq=1..2048]; mask=bool[batch,seq];image=f16[2,channels=3..3,8]"


def test_types_sizes_and_ranges():
    ids, mask, image = parse_shapes(TEXT)
    assert (ids.name, ids.dtype, ids.shape) == ("ids", torch.int64, (2, 3))
    assert (mask.shape, mask.axes) == (ids.shape, ids.axes)
    assert mask.resized().shape == ids.resized().shape == (5, 4)
    assert (image.dtype, image.shape, image.axes) == (torch.float16, (2, 3, 8), {})
    batch = ids.axes[0]
    assert (batch.__name__, batch.min, batch.max) == ("batch", 1, 8)


def test_examples_are_in_range_and_once_more_of_other_sizes():
    text = "ids=int32[batch=1..2,seq=3..];attention_mask=int64[batch,seq];x=bf16[4]"
    loaded = Loaded(torch.nn.Embedding(7, 4), "a module")
    example = example_of(loaded, text, seed=3)
    assert {name: sorted(axes) for name, axes in example.dynamic.items()} == {
        "ids": [0, 1], "attention_mask": [0, 1], "x": [],
    }  # fmt: skip
    (_, one), (_, two) = example.feeds(seed=3, limit=loaded.limit)
    assert one["ids"].dtype == torch.int32
    assert one["x"].dtype == torch.bfloat16
    assert torch.equal(random_inputs(example.inputs, seed=3, limit=7)["ids"], one["ids"])
    for inputs in (one, two):
        assert 0 <= inputs["ids"].min() <= inputs["ids"].max() < 7
        assert (inputs["attention_mask"] == 1).all()
        assert inputs["ids"].shape == inputs["attention_mask"].shape
        assert inputs["ids"].shape[0] <= 2
    assert one["ids"].shape != two["ids"].shape


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ", ["no input"]),
        ("ids=int64[2", ["ids=int64[2"]),
        ("ids=int63[2]", ["int63", "int64"]),
        ("ids=int64[2,x y]", ["'x y'"]),
        ("ids=int64[b=5..4]", ["empty", "5..4"]),
        ("ids=int64[b=1..4,b=1..5]", ["another range", "b=1..5"]),
        ("ids=int64[2];ids=int64[2]", ["twice", "ids"]),
        ("ids=int64[99999999999]", ["too large", "ids"]),
    ],
)
def test_what_cannot_be_read_is_named(text, words):
    with pytest.raises(UsageError) as caught:
        example_of(Loaded(torch.nn.Identity(), "a module"), text, seed=0)
    assert [word for word in words if word not in caught.value.found] == []
    assert caught.value.fix

"""A cast to a smaller type: what becomes infinite is an error, what becomes zero a note."""

from __future__ import annotations

import contextlib
import math
import tracemalloc

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rmsnorm_export.errors import InputError
from rmsnorm_export.torch.source.cast import check_tensors
from rmsnorm_export.torch.source.load import SourceOptions, load

CASTS = [
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.float16),
    (torch.float64, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float32),
]


@pytest.mark.parametrize(("source", "target"), CASTS, ids=str)
def test_every_value_is_judged_as_the_cast_judges_it(source, target):
    """Bits near both limits of the target, special values, signs, odd sizes."""
    generator = torch.Generator().manual_seed(3)
    least = torch.finfo(target).tiny * torch.finfo(target).eps
    for size in (1, 3, 111, 4099, 2**17 + 5):
        exponents = torch.rand(size, generator=generator, dtype=torch.float64) * 8 - 4
        sign = torch.where(torch.rand(size, generator=generator) < 0.5, -1.0, 1.0).double()
        values = (sign * least * 2.0**exponents).to(source)
        special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0], dtype=source)
        values = torch.cat([values, special, -values[:1]])
        lost = int(((values != 0) & (values.to(target) == 0)).sum())
        notes = check_tensors([("w", values)], target)
        assert (f"{lost} weights" in notes[0]) if lost else notes == []
    top = torch.finfo(target).max
    edge = top * (1 + torch.finfo(target).eps / 4)  # halfway to the next power of two: infinite
    for value in (*(top * f for f in (0.5, 0.9999, 1, 1.01, -2)), edge, edge * (1 - 1e-6)):
        tensor = torch.tensor([1.0, value, math.inf, math.nan], dtype=torch.float64).to(source)
        beyond = bool((tensor.isfinite() & ~tensor.to(target).isfinite()).any())
        with pytest.raises(InputError) if beyond else contextlib.nullcontext():
            check_tensors([("w", tensor)], target)


def test_no_second_copy_is_made(tmp_path):
    weight = torch.randn(2**23).bfloat16()  # 16 MiB
    path = tmp_path / "model.safetensors"
    save_file({"a": weight, "b": torch.full((5,), 1e5)}, path)
    tracemalloc.start()
    check_tensors([("a", weight)], torch.float16)
    with pytest.raises(InputError, match=r"b \(up to 100000\)"):
        check_tensors(load_file(path).items(), torch.float16)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def make(big=1.0, tiny=0.5):
    model = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.Linear(8, 4))
    with torch.no_grad():
        model[1].weight[1, 2] = big
        model[1].bias.fill_(tiny)
    return model, (torch.ones(2, 8),)


def test_a_factory():
    with pytest.raises(InputError, match=r"1\.weight \(up to 70000\)"):
        load(f"{__name__}:make", SourceOptions(dtype="f16", arguments={"big": -70000.0}))
    tiny = SourceOptions(dtype="f16", arguments={"tiny": 1e-9})
    assert "1.bias (4)" in load(f"{__name__}:make", tiny).notes[0]


@pytest.mark.parametrize("shards", ["5GB", "20KB"])
def test_a_folder_whose_weights_become_infinite(shards, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=32, num_hidden_layers=2, **sizes)
    model = transformers.LlamaForCausalLM(config).bfloat16()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = 7e4
        model.model.layers[0].mlp.down_proj.weight[3, 5] = -(2.0**17)
    model.save_pretrained(tmp_path, max_shard_size=shards)
    with pytest.raises(InputError, match="2 tensors") as caught:
        load(str(tmp_path), SourceOptions(dtype="f16"))
    assert "model.layers.0.mlp.down_proj.weight (up to 131072)" in caught.value.found
    assert "model.layers.1.mlp.up_proj.weight" in caught.value.found
    assert load(str(tmp_path), SourceOptions()).notes == ()
    assert load(str(tmp_path), SourceOptions(dtype="f32")).notes == ()

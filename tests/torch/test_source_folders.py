"""Hugging Face folders: which files of one are read, and what none of them may name."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import rmsnorm_export as rx
from rmsnorm_export.errors import UsageError
from rmsnorm_export.torch.source.example import Loaded, example_of, parse_shapes, random_inputs
from rmsnorm_export.torch.source.huggingface import offline
from rmsnorm_export.torch.source.load import SourceOptions, load

TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32}
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    (tmp_path / "secret").mkdir()
    shutil.copy(saved / WHOLE, tmp_path / "secret" / WHOLE)
    return folder


def loaded(folder: Path) -> Any:
    return load(str(folder), SourceOptions()).module


def test_no_question_is_answered_by_what_is_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y"))
    with offline():
        assert sys.stdin.read() == ""
    assert sys.stdin.read() == "y"


def assert_equal(module: Any, expected: dict[str, torch.Tensor]) -> None:
    state = module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def split(folder: Path, name: str = "part.safetensors") -> None:
    """The weights in a file that an index names, instead of the one."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / WHOLE).rename(folder / name)
    write_index(folder, name)


def write_index(folder: Path, name: object) -> None:
    weights = load_file(folder.parent / "secret" / WHOLE)
    (folder / WHOLE).unlink(missing_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(weights, name)}))


def link(folder: Path, target: str) -> None:
    (folder / WHOLE).unlink()
    (folder / WHOLE).symlink_to(folder.parent / target)


def link_of_a_folder(folder: Path) -> None:
    (folder / "sub").symlink_to(folder.parent / "secret")
    write_index(folder, f"sub/{WHOLE}")


def blobs_elsewhere(folder: Path) -> None:
    """Laid out as the cache, but its blobs are a link."""
    (folder / "snapshots").mkdir()
    (folder / "blobs").symlink_to(folder.parent / "secret")
    link(folder, f"model/blobs/{WHOLE}")


OUTSIDE: dict[str, Callable[[Path], None]] = {
    "a relative name": lambda folder: write_index(folder, f"../secret/{WHOLE}"),
    "an absolute name": lambda folder: write_index(folder, str(folder.parent / "secret" / WHOLE)),
    "a hidden parent": lambda folder: write_index(folder, f"sub/../../secret/{WHOLE}"),
    "its own folder by a detour": lambda folder: write_index(folder, f"../model/{WHOLE}"),
    "a link": lambda folder: link(folder, f"secret/{WHOLE}"),
    "a link of a folder": link_of_a_folder,
    "a cache whose blobs are a link": blobs_elsewhere,
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_weights_outside_of_the_folder_are_refused(how: str, model: Path) -> None:
    OUTSIDE[how](model)
    with pytest.raises(rx.InputError, match="lies outside of it"):
        loaded(model)


@pytest.mark.parametrize("how", ["one file", "an index", "a folder within", "a link within"])
def test_weights_within_the_folder_are_loaded(how: str, model: Path) -> None:
    expected = load_file(model / WHOLE)
    if how != "one file":
        split(model, "sub/part.safetensors" if how == "a folder within" else "part.safetensors")
    if how == "a link within":
        (model / "part.safetensors").rename(model / "real.safetensors")
        (model / "part.safetensors").symlink_to("real.safetensors")
    (model / "adapter_config.json").write_text("nothing that is read")
    module = loaded(model)
    assert_equal(module, expected)
    assert module.config.name_or_path == str(model)


@pytest.mark.parametrize("within", ["", "unet"])
@pytest.mark.parametrize("parts", [False, True])
def test_a_cache_links_to_its_blobs(parts: bool, within: str, model: Path) -> None:
    expected = load_file(model / WHOLE)
    if parts:
        split(model)
    cache = model.parent / "models--one--two"
    snapshot = cache / "snapshots" / "0123" / within
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        path.rename(blob := cache / "blobs" / f"{number}")
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    assert_equal(loaded(snapshot), expected)


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "os"},
        {"text_config": {"dtype": "torch.hub"}},
        {"quantization_config": {"bnb_4bit_compute_dtype": "serialization"}},
        {"transformers_weights": "../secret/model.safetensors"},
        {"to_dict": 1},
    ],
)
def test_a_config_names_nothing_that_is_looked_up(changes: dict[str, Any], model: Path) -> None:
    change_config(model, **changes)
    with pytest.raises(rx.InputError, match="config"):
        loaded(model)


@pytest.mark.parametrize("name", ["AutoModelForCausalLM", "Trainer", "sys", "utils", "__dict__"])
def test_an_architecture_is_a_model_of_transformers(name: str, model: Path) -> None:
    change_config(model, architectures=[name])
    assert type(loaded(model)) is transformers.LlamaForCausalLM


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", INDEX])
def test_a_key_that_stands_twice_is_refused(file: str, model: Path) -> None:
    split(model)
    text = (model / file).read_text()
    (model / file).write_text(text.replace("{", '{"use_cache": 1, "use_cache": 2, ', 1))
    with pytest.raises(rx.InputError, match="given twice"):
        loaded(model)


@pytest.mark.parametrize("tag", [True, False])
def test_numbers_without_end_of_older_configs_are_read(tag: bool, tmp_path: Path) -> None:
    limit = [0.0, {"__float__": "Infinity"} if tag else float("inf")]
    config = {"model_type": "mamba2", "num_hidden_layers": 1, "hidden_size": 16, "num_heads": 4}
    config |= {"head_dim": 8, "n_groups": 1, "vocab_size": 32, "time_step_limit": limit}
    (tmp_path / "config.json").write_text(json.dumps(config))
    module = loaded(tmp_path / "config.json")
    assert tuple(module.config.time_step_limit) == (0.0, float("inf"))


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing that is there"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", WHOLE, INDEX, "part"])
def test_what_is_no_file_is_refused(file: str, kind: str, model: Path) -> None:
    if file in (INDEX, "part"):
        split(model, "part")
    path = model / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nothing/there")
    optional = (file, kind) == ("generation_config.json", "nothing that is there")
    faulthandler.dump_traceback_later(60, exit=True)  # where it is waited for
    with contextlib.nullcontext() if optional else pytest.raises(rx.InputError):
        loaded(model)
    faulthandler.cancel_dump_traceback_later()


# ``--shapes``: what it means, and what is said of what cannot be read.

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


def without_end(folder: Path, _: dict[str, torch.Tensor]) -> None:
    os.truncate(folder / WHOLE, 99)


def of_another_size(folder: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state | {"model.norm.weight": torch.ones(5)}, folder / WHOLE)


def quantized(folder: Path, state: dict[str, torch.Tensor]) -> None:
    del state["model.norm.weight"]
    save_file(state, folder / WHOLE)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "of a later release"}
    (folder / "config.json").write_text(json.dumps(config))


def adapter(folder: Path, _: dict[str, torch.Tensor]) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


@pytest.mark.parametrize(
    ("change", "found", "fix"),
    [
        (without_end, WHOLE, "complete the folder"),
        (of_another_size, "norm.weight is [5], of LlamaForCausalLM it is [16]", "put back the"),
        (quantized, "model.norm.weight", "before they were quantized"),
        (adapter, "an adapter alone", "merge it into its model"),
    ],
)
def test_weights_that_are_others_are_told(
    change: Callable[..., None], found: str, fix: str, model: Path
) -> None:
    change(model, load_file(model / WHOLE))
    with pytest.raises(rx.InputError) as caught:
        loaded(model)
    assert (found in caught.value.found, fix in caught.value.fix) == (True, True)


def test_what_is_left_of_a_folder_is_told(model: Path) -> None:
    save_file(load_file(model / WHOLE) | {"model.layers.7.w": torch.ones(1)}, model / WHOLE)
    (model / "adapter_config.json").write_text("{}")
    notes = " ".join(load(str(model), SourceOptions()).notes)
    assert "1 tensor that LlamaForCausalLM does not have, as model.layers.7.w, not used" in notes
    assert "the adapter of adapter_config.json is not applied" in notes

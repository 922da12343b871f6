"""What a manifest of an export may name: caches of every kind, and nothing that would run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import onnx
import torch
import transformers
from torch.utils import _pytree
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Qwen3NextConfig,
    T5Config,
    cache_utils,
)
from transformers.exporters.exporter_dynamo import register_pytree_node
from transformers.modeling_outputs import CausalLMOutputWithPast

import rmsnorm_export as rx
from rmsnorm_export.torch.generation.structures import checked_metadata

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "windowed": LlamaConfig(**SIZES, sliding_window=4, layer_types=["sliding_attention"] * 4),
    "mamba2": Mamba2Config(num_hidden_layers=2, hidden_size=32, num_heads=8, head_dim=8),
    "qwen3_next": Qwen3NextConfig(**SIZES),
}
CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: cache_utils.DynamicCache(config=config),
    "static": lambda config: cache_utils.StaticCache(config=config, max_cache_len=8),
}
LEAF = {"type": None, "context": None, "children_spec": []}


def model_of(config: Any, kind: str = "causal") -> Any:
    """A model without weights."""
    with torch.device("meta"):
        if kind == "causal":
            return transformers.AutoModelForCausalLM.from_config(config)
        return transformers.AutoModelForSeq2SeqLM.from_config(config)


def metadata(out_spec: object, **changes: object) -> dict[str, Any]:
    return {"export_dtype": "float32", "kwargs": {"input_ids": {}}, "out_spec": out_spec} | changes


def spec_of(cache: Any) -> str:
    register_pytree_node(type(cache))
    structure = CausalLMOutputWithPast(logits=torch.zeros(1), past_key_values=cache)  # type: ignore[arg-type]
    return str(_pytree.treespec_dumps(_pytree.tree_structure(structure)))


def assert_same_when_written_anew(model: Any, spec: str) -> None:
    anew = checked_metadata(model, "decode", metadata(spec))
    assert anew["out_spec"] == spec
    assert _pytree.treespec_loads(anew["out_spec"]) == _pytree.treespec_loads(spec)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_caches_of_transformers_are_written_anew(config: str, kind: str) -> None:
    spec = spec_of(CACHES[kind](CONFIGS[config]))
    assert_same_when_written_anew(model_of(CONFIGS[config]), spec)


def test_the_cache_of_an_encoder_decoder_is_written_anew() -> None:
    config = T5Config(num_layers=2, d_model=16)
    parts = [cache_utils.DynamicCache(config=config) for _ in range(2)]
    spec = spec_of(cache_utils.EncoderDecoderCache(*parts))
    assert_same_when_written_anew(model_of(config, "seq2seq"), spec)


def node(name: str, content: object, *children: object) -> dict[str, object]:
    return {"type": name, "context": json.dumps(content), "children_spec": list(children)}


CACHE = "transformers.cache_utils:DynamicCache"
HOSTILE: dict[str, dict[str, object]] = {
    "a function that is called": node(CACHE, {"_t": "seq", "p": "os:system", "v": ["true"]}),
    "a function of builtins": node(CACHE, {"_t": "seq", "p": "builtins:eval", "v": ["1"]}),
    "a mapping": node(CACHE, {"_t": "map", "p": "hostile_module:Thing", "v": {}}),
    "an object": node(CACHE, {"_t": "obj", "p": "hostile_module:Thing", "s": {}}),
    "a container with fields": node(CACHE, {"_t": "obj", "p": "builtins:list", "s": {}}),
    "a type": node(CACHE, {"_t": "type", "p": "subprocess:Popen"}),
    "within an object": node(
        CACHE, {"_t": "obj", "p": CACHE, "s": {"x": [{"_t": "type", "p": "hostile_module:T"}]}}
    ),
    "within items": node(CACHE, {"_t": "items", "v": [["k", {"_t": "type", "p": "os:abort"}]]}),
    "within a tensor's place": node(CACHE, {"_t": "unheard of", "p": "os:abort"}),
    "a function of transformers": node(
        CACHE, {"_t": "seq", "p": "transformers:pipeline", "v": ["text-generation"]}
    ),
    "a class of transformers that is called": node(
        CACHE, {"_t": "map", "p": "transformers:Trainer", "v": {}}
    ),
    "a path out of transformers": node(CACHE, {"_t": "type", "p": "transformers.os:system"}),
    "the default of a dictionary": node(
        "collections.defaultdict",
        {
            "default_factory_module": "hostile_module",
            "default_factory_name": "f",
            "dict_context": [],
        },
        LEAF,
    ),
    "an enumeration": node(
        "builtins.dict", [{"__enum__": True, "fqn": "hostile_module:E", "name": "A"}], LEAF
    ),
    "another type": node("hostile_module.Thing", None),
    "a class of another model": node("transformers.models.mamba.modeling_mamba.MambaCache", {}),
    "a method replaced": node(CACHE, {"_t": "obj", "p": CACHE, "s": {"update": 1}}),
    "its class replaced": node(CACHE, {"_t": "obj", "p": CACHE, "s": {"__class__": 1}}),
    "an attribute of PyTorch": node(CACHE, {"_t": "dtype", "n": "os"}),
    "a module of PyTorch": node(CACHE, {"_t": "layout", "n": "hub"}),
    "a device of another make": node(CACHE, {"_t": "device", "s": "privateuseone:0"}),
    "a tensor that is not there": node(CACHE, {"_t": "tensor", "i": 0}),
    "below": node("builtins.tuple", None, node("hostile_module.Thing", None)),
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of(CONFIGS["llama"])


def assert_refused(model: Any, entry: dict[str, Any]) -> None:
    with pytest.raises(rx.InputError, match="not rebuilt here") as caught:
        checked_metadata(model, "decode", entry)
    assert "out_spec of decode" in str(caught.value)


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_run_is_refused_before_it_is_looked_up(
    kind: str, llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert_refused(llama, metadata(json.dumps([1, HOSTILE[kind]])))
    assert "hostile_module" not in sys.modules


ENUM = '{"__enum__": true, "fqn": "hostile_module:E", "name": "A"}'
TWICE = {
    "in a cache": f'{{"a": {ENUM}, "a": null}}',
    "deep in a cache": f'{{"a": [{{"b": {{"c": {ENUM}, "c": 0}}}}]}}',
    "by an escape": f'{{"a": {ENUM}, "\\u0061": null}}',
    "the mark of an object": '{"_t": "obj", "p": "os:system", "s": {}, "_t": "size", "v": []}',
    "the name of an object": f'{{"_t": "obj", "p": "os:system", "p": "{CACHE}", "s": {{}}}}',
}


@pytest.mark.parametrize("where", TWICE)
def test_a_key_that_stands_twice_is_refused(where: str, llama: Any) -> None:
    inner = {"type": CACHE, "context": TWICE[where], "children_spec": []}
    assert_refused(llama, metadata(json.dumps([1, inner])))


@pytest.mark.parametrize("key", ["type", "context", "children_spec"])
def test_a_key_of_a_node_that_stands_twice_is_refused(key: str, llama: Any) -> None:
    spec = json.dumps([1, LEAF])
    twice = spec.replace(f'"{key}"', f'"{key}": {json.dumps(HOSTILE["a type"][key])}, "{key}"')
    assert_refused(llama, metadata(twice))


@pytest.mark.parametrize(
    "changes",
    [
        {"export_dtype": "os"},
        {"export_dtype": "hub"},
        {"export_dtype": None},
        {"kwargs": ["input_ids"]},
        {"out_constants": [[5, 1]]},
        {"out_constants": [[0, {"a": 1}]]},
        {"out_constants": [[-1, 1]]},
        {"out_constants": "ab"},
        {"out_spec": None},
        {"out_spec": json.dumps([2, LEAF])},
    ],
)
def test_other_facts_are_checked_too(changes: dict[str, Any], llama: Any) -> None:
    assert_refused(llama, metadata(json.dumps([1, LEAF])) | changes)


RAN = """
#include <fcntl.h>
__attribute__((constructor)) static void ran(void) { open("FILE", O_CREAT | O_WRONLY, 0600); }
"""


@pytest.mark.parametrize("how", ["named", "named twice"])
def test_verify_runs_nothing_that_a_folder_names(how: str, tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, vocab_size=64, intermediate_size=48)
    config.save_pretrained(tmp_path)
    graph = onnx.parser.parse_graph(
        "decode (int64[b, s] input_ids) => (int64[b, s] y) { y = Neg(input_ids) }"
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "decode.onnx")
    (tmp_path / "decode.onnx.data").touch()
    touch = node(CACHE, {"_t": "seq", "p": "os:system", "v": [f"touch {tmp_path}/ran"]})
    if how == "named twice":  # PyTorch's reader would call ctypes.cdll[FILE] for the first
        (tmp_path / "ran.c").write_text(RAN.replace("FILE", str(tmp_path / "ran")))
        library = str(tmp_path / "ran.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "ran.c"], check=True)
        enum = json.dumps({"__enum__": True, "fqn": "ctypes:cdll", "name": library})
        content = json.dumps({"_t": "obj", "p": CACHE, "s": {}})
        touch["context"] = content[:-1] + f', "z": {enum}, "z": null}}'
    out = node("transformers.modeling_outputs.CausalLMOutputWithPast", ["past_key_values"], touch)
    metadata: dict[str, Any] = {"architecture": "LlamaForCausalLM", "export_dtype": "float32"}
    metadata |= {"in_spec": json.dumps([1, node("builtins.tuple", None)]), "export_config": {}}
    metadata |= {"out_spec": json.dumps([1, out])}
    record = {"file": "decode.onnx", "metadata": metadata}
    manifest = {"schema_version": 1, "export_format": "onnx", "components": {"decode": record}}
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    model = LlamaForCausalLM(config).eval()
    with pytest.raises(rx.InputError, match=r"os.system|stands twice"):
        rx.verify(model, tmp_path, generate=2)
    assert not (tmp_path / "ran").exists()


SPECS = ["", "{}", "[1]", "[1, 2]", '[1, {"type": 3}]', "[" * 100_000]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_that_is_none_is_refused(spec: str, llama: Any) -> None:
    assert_refused(llama, metadata(spec))

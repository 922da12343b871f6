"""What a manifest of an export may name: caches of every kind, and nothing that would run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import onnx
import torch
import transformers
from torch.utils import _pytree
from transformers import LlamaConfig, LlamaForCausalLM, cache_utils
from transformers.exporters.exporter_dynamo import register_pytree_node
from transformers.modeling_outputs import CausalLMOutputWithPast

import rmsnorm_export as rx
from rmsnorm_export.decoder.metadata import checked_metadata
from rmsnorm_export.decoder.structures import structure_anew

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "windowed": LlamaConfig(**SIZES, sliding_window=4, layer_types=["sliding_attention"] * 4),
    "mamba2": transformers.Mamba2Config(
        num_hidden_layers=2, hidden_size=32, num_heads=8, head_dim=8
    ),
    "qwen3_next": transformers.Qwen3NextConfig(**SIZES),
    "t5": transformers.T5Config(num_layers=2, d_model=16),
}


def cache_of(name: str, kind: str) -> Any:
    config = CONFIGS[name]
    if kind == "static":
        return cache_utils.StaticCache(config=config, max_cache_len=8)
    parts = [cache_utils.DynamicCache(config=config) for _ in range(2)]
    return cache_utils.EncoderDecoderCache(*parts) if name == "t5" else parts[0]


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", CONFIGS)
def test_caches_of_transformers_are_written_anew(name: str, kind: str) -> None:
    cache = cache_of(name, kind)
    register_pytree_node(type(cache))
    structure = CausalLMOutputWithPast(logits=torch.zeros(1), past_key_values=cache)  # type: ignore[arg-type]
    spec = _pytree.treespec_dumps(_pytree.tree_structure(structure))
    assert structure_anew(spec) == spec
    with torch.device("meta"):
        auto = "AutoModelForSeq2SeqLM" if name == "t5" else "AutoModelForCausalLM"
        model = getattr(transformers, auto).from_config(CONFIGS[name])
    entry = {"export_dtype": "float32", "kwargs": {}, "out_spec": spec}
    assert checked_metadata(model, "decode", entry)["out_spec"] == spec
    assert _pytree.treespec_loads(structure_anew(spec)) == _pytree.treespec_loads(spec)


def node(name: str, content: object, *children: object) -> dict[str, object]:
    return {"type": name, "context": json.dumps(content), "children_spec": list(children)}


def _state(mark: str, path: str) -> dict[str, object]:
    """Return an empty mapping, or an object without fields, of a class in a model's folder."""
    return {"_t": mark, "p": f"transformers.models.{path}", "v" if mark == "map" else "s": {}}


LEAF = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
CACHE, OUTPUTS = "transformers.cache_utils:DynamicCache", "transformers.modeling_outputs"
HOSTILE: dict[str, dict[str, object]] = {
    "a function that is called": {"_t": "seq", "p": "os:system", "v": ["true"]},
    "a class that is called": {"_t": "seq", "p": CACHE, "v": []},
    "a class of transformers": {"_t": "map", "p": "transformers:Trainer", "v": {}},
    "a tensor that is not there": {"_t": "tensor", "i": 0},
    "a tensor before the first": {"_t": "tensor", "i": -1},
    "a size that is none": {"_t": "size", "v": [1, -1]},
    "items by lists": {"_t": "items", "v": [[[1], 2]]},
    "an output as an object": {"_t": "obj", "p": f"{OUTPUTS}:BaseModelOutput", "s": {}},
    "a layer of a model": _state("obj", "a.modeling_a:Path"),
    "within items": {"_t": "items", "v": [["k", {"_t": "type", "p": "os:abort"}]]},
    "another mark": {"_t": "unheard of", "v": 1},
    "its class replaced": {"_t": "obj", "p": CACHE, "s": {"__class__": 1}},
    "an attribute of PyTorch": {"_t": "dtype", "n": "os"},
    "a module of PyTorch": {"_t": "layout", "n": "hub"},
    "a device of another make": {"_t": "device", "s": "privateuseone:0"},
}
OF_OTHERS: dict[str, dict[str, object]] = {
    "a module that is called": _state("map", "llama.modeling_llama:FakeOutput"),
    "a layer that is no cache's": _state("obj", "llama.modeling_llama:LlamaDecoderLayer"),
    "a module with the name of an output": _state("map", "bert.modeling_bert:BertSelfOutput"),
    "another model's cache": _state("obj", "xlstm.modeling_xlstm:xLSTMCache"),
    "another model's config": _state("obj", "bert.configuration_bert:BertConfig"),
    "a method replaced": {"_t": "obj", "p": CACHE, "s": {"update": {"_t": "type", "p": CACHE}}},
}
"""Named as caches and outputs are, but none of those of the model at hand."""


@pytest.fixture(scope="module")
def llama() -> Any:
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**SIZES))


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_run_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"is no|marks no|names an"):
        structure_anew(json.dumps([1, node(CACHE, HOSTILE[kind])]))


@pytest.mark.parametrize("kind", [*HOSTILE, *OF_OTHERS])
def test_a_model_is_given_its_own_classes_alone(kind: str, llama: Any) -> None:
    for name in (CACHE, str(OF_OTHERS.get(kind, {}).get("p", CACHE))):
        spec = json.dumps([1, node(name, (HOSTILE | OF_OTHERS)[kind])])
        entry = {"export_dtype": "float32", "kwargs": {}, "out_spec": spec}
        with pytest.raises(rx.InputError, match="how its graphs are called"):
            checked_metadata(llama, "decode", entry)


@pytest.mark.parametrize("spec", ["", "{}", "[1]", "[1, 2]", '[1, {"type": 3}]', "[2, null]"])
def test_a_text_that_is_no_structure_is_refused(spec: str) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        structure_anew(spec)


@pytest.mark.parametrize(
    "changes",
    [
        *({"export_dtype": "os"}, {"kwargs": 5}, {"out_spec": None}),
        *({"out_constants": value} for value in ([[0, {"a": 1}]], [[-1, 1]], "ab")),
    ],
)
def test_other_facts_are_checked_too(changes: dict[str, Any], llama: Any) -> None:
    entry = {"export_dtype": "float32", "kwargs": {"input_ids": {}}, "out_spec": LEAF}
    assert checked_metadata(llama, "decode", entry)["out_constants"] == []
    with pytest.raises(rx.InputError, match="how its graphs are called"):
        checked_metadata(llama, "decode", entry | changes)


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
    out = node(f"{OUTPUTS}.CausalLMOutputWithPast", ["past_key_values"], touch)
    metadata: dict[str, Any] = {"architecture": "LlamaForCausalLM", "export_dtype": "float32"}
    metadata |= {"in_spec": json.dumps([1, node("builtins.tuple", None)]), "export_config": {}}
    metadata |= {"out_spec": json.dumps([1, out])}
    record = {"file": "decode.onnx", "metadata": metadata}
    manifest = {"schema_version": 1, "export_format": "onnx", "components": {"decode": record}}
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    model = LlamaForCausalLM(config).eval()
    with pytest.raises(rx.InputError, match=r"os.system|given twice"):
        rx.verify(model, tmp_path, generate=2)
    assert not (tmp_path / "ran").exists()

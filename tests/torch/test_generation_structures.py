"""What a manifest of an export may name: caches of every kind, and nothing that would run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import onnx
import torch
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
from rmsnorm_export.torch.generation.structures import check_structures

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


def written(tmp_path: Path, out_spec: str) -> Path:
    path = tmp_path / "export.json"
    metadata = {"in_spec": None, "out_spec": out_spec}
    path.write_text(json.dumps({"components": {"decode": {"metadata": metadata}}}))
    return path


def spec_of(cache: Any) -> str:
    register_pytree_node(type(cache))
    structure = CausalLMOutputWithPast(logits=torch.zeros(1), past_key_values=cache)  # type: ignore[arg-type]
    return str(_pytree.treespec_dumps(_pytree.tree_structure(structure)))


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_caches_of_transformers_are_let_through(config: str, kind: str, tmp_path: Path) -> None:
    check_structures(written(tmp_path, spec_of(CACHES[kind](CONFIGS[config]))))


def test_the_cache_of_an_encoder_decoder_is_let_through(tmp_path: Path) -> None:
    parts = [cache_utils.DynamicCache(config=T5Config(num_layers=2, d_model=16)) for _ in range(2)]
    register_pytree_node(cache_utils.DynamicCache)
    check_structures(written(tmp_path, spec_of(cache_utils.EncoderDecoderCache(*parts))))


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
    "below": node("builtins.tuple", None, node("hostile_module.Thing", None)),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_run_is_refused_before_it_is_looked_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(rx.InputError, match="not rebuilt here") as caught:
        check_structures(written(tmp_path, json.dumps([1, HOSTILE[kind]])))
    assert "out_spec of decode" in str(caught.value)
    assert "hostile_module" not in sys.modules


def test_verify_runs_nothing_that_a_folder_names(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, vocab_size=64, intermediate_size=48)
    config.save_pretrained(tmp_path)
    graph = onnx.parser.parse_graph(
        "decode (int64[b, s] input_ids) => (int64[b, s] y) { y = Neg(input_ids) }"
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "decode.onnx")
    (tmp_path / "decode.onnx.data").touch()
    touch = node(CACHE, {"_t": "seq", "p": "os:system", "v": [f"touch {tmp_path}/ran"]})
    out = node("transformers.modeling_outputs.CausalLMOutputWithPast", ["past_key_values"], touch)
    metadata: dict[str, Any] = {"architecture": "LlamaForCausalLM", "export_dtype": "float32"}
    metadata |= {"in_spec": json.dumps([1, node("builtins.tuple", None)]), "export_config": {}}
    metadata |= {"out_spec": json.dumps([1, out])}
    record = {"file": "decode.onnx", "metadata": metadata}
    manifest = {"schema_version": 1, "export_format": "onnx", "components": {"decode": record}}
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    model = LlamaForCausalLM(config).eval()
    with pytest.raises(rx.InputError, match=r"os\.system"):
        rx.verify(model, tmp_path, generate=2)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("spec", ["", "{}", "[1]", "[1, 2]", '[1, {"type": 3}]', "[" * 100_000])
def test_a_spec_that_is_none_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(rx.InputError, match="not rebuilt here"):
        check_structures(written(tmp_path, spec))

"""What was checked is what is used: manifests are written anew, a changed file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import rmsnorm_export as rx
from rmsnorm_export.decoder.structures import structure_anew
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.system.reading import read_file

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 18]> main (float[B, 8] x) => (float[B, 8] y)'
    "{ y = Identity (x) }"
)
LEAF = {"type": None, "context": None, "children_spec": []}
CACHE = "transformers.cache_utils:DynamicCache"
LAYER = "transformers.cache_utils:DynamicLayer"


def node(kind: str, content: object, *children: object, **further: object) -> dict[str, object]:
    context = content if isinstance(content, str) else json.dumps(content)
    return {"type": kind, "context": context, "children_spec": list(children)} | further


def part(kind: str, **state: object) -> dict[str, object]:
    return {"_t": "obj", "p": kind, "s": state}


GOOD = {
    "tuple": node("builtins.tuple", "null", LEAF),
    "ordered": node("collections.OrderedDict", ["x"], LEAF),
    "output": node("transformers.modeling_outputs.CausalLMOutputWithPast", ["logits"], LEAF),
    "own output": node("transformers.models.mamba2.modeling_mamba2.Mamba2Output", ["y"], LEAF),
    "cache": node(CACHE, part(CACHE, layers=[part(LAYER, keys={"_t": "tensor", "i": 0})]), LEAF),
    "config": node(CACHE, part(CACHE, c=part("transformers.models.a.configuration_a:AConfig"))),
    "sequence": node(CACHE, part(CACHE, all={"_t": "seq", "p": "builtins:tuple", "v": []})),
}


@pytest.mark.parametrize("name", GOOD)
def test_structures_of_exporters_are_written_on(name: str) -> None:
    text = json.dumps([1, GOOD[name]])
    assert structure_anew(text) == text


BAD = {
    "class of another package": node("ctypes:CDLL", "null"),
    "function": node("transformers.cache_utils:load", "null"),
    "module of tools": node("transformers.utils.hub:Cache", "null"),
    "class within a class": node("transformers.cache_utils:Cache.Meta", "null"),
    "object in a list": node(CACHE, part(CACHE, a=[{"b": part("os:system")}])),
    "enumeration": node(CACHE, part(CACHE, a={"__enum__": "x", "fqn": "a.b"})),
    "below": node("builtins.tuple", "null", node("ctypes:CDLL", "null")),
    "tensor with parts": {"type": None, "context": "[]", "children_spec": []},
    "key twice": '[1, {"type": null, "type": "ctypes:CDLL", "context": null, "children_spec": []}]',
    "key twice within": node(CACHE, '{"_t": "obj", "_t": "type"}'),
    "no text": "[1, 2]",
    "deep": "[" * 400 + "]" * 400,
}


@pytest.mark.parametrize("name", BAD)
def test_what_names_anything_else_is_not_read(name: str) -> None:
    content = BAD[name]
    with pytest.raises(ValueError, match=r"\w"):
        structure_anew(content if isinstance(content, str) else json.dumps([1, content]))


@pytest.mark.parametrize("key", ["in_spec", "out_spec"])
def test_what_nobody_reads_is_not_written(key: str, tmp_path: Path) -> None:
    further = node("builtins.tuple", "null", LEAF, aux={"type": "ctypes:CDLL"})
    for name, spec in {"good": further, "bad": BAD["function"]}.items():
        (folder := tmp_path / name).mkdir()
        onnx.save(MODEL, folder / "decode.onnx")
        part = {"file": "decode.onnx", "metadata": {key: json.dumps([1, spec])}}
        manifest = {"export_format": "onnx", "components": {"decode": part}}
        (folder / "export.json").write_text(json.dumps(manifest))
    rx.optimize(tmp_path / "good").save(tmp_path / "out")
    assert "ctypes" not in (tmp_path / "out" / "export.json").read_text()
    with pytest.raises(rx.InputError, match="manifest of the export"):
        rx.optimize(tmp_path / "bad")


def test_a_file_that_was_changed_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODEL, path)
    loaded = load_model(path)
    assert loaded.to_bytes() == path.read_bytes()
    other = tmp_path / "other.onnx"
    onnx.save(MODEL, other)
    other.replace(path)
    with pytest.raises(rx.InputError, match="changed"):
        loaded.to_bytes()
    onnx.save(MODEL, other)

    def then_replaced(*arguments: Any) -> bytes:
        data = read_file(*arguments)
        other.replace(path)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmsnorm_export.graph.load.read_file", then_replaced)
        loaded = load_model(path)
    with pytest.raises(rx.InputError, match="changed"):
        loaded.to_bytes()

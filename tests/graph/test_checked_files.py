"""What was checked is what is used: manifests are written anew, a changed file is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import rmsnorm_export as rx
from rmsnorm_export.graph.load import load_model

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


def made(kind: str, **state: object) -> dict[str, object]:
    return {"_t": "obj", "p": kind, "s": state}


def exported(folder: Path, **specs: object) -> Path:
    folder.mkdir()
    onnx.save(MODEL, folder / "decode.onnx")
    texts = {key: value if isinstance(value, str) else json.dumps([1, value])
             for key, value in specs.items()}  # fmt: skip
    metadata: Mapping[str, Any] = {"kwargs": {}, "export_config": {}, **texts}
    component = {"file": "decode.onnx", "metadata": metadata}
    manifest = {"export_format": "onnx", "components": {"decode": component}}
    (folder / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


GOOD = {
    "tuple": node("builtins.tuple", "null", LEAF),
    "dict": node("builtins.dict", ["x"], LEAF),
    "ordered": node("collections.OrderedDict", ["x"], LEAF),
    "output": node("transformers.modeling_outputs.CausalLMOutputWithPast", ["logits"], LEAF),
    "own output": node("transformers.models.mamba2.modeling_mamba2.Mamba2Output", ["y"], LEAF),
    "cache": node(CACHE, made(CACHE, layers=[made(LAYER, keys={"_t": "tensor", "i": 0})]), LEAF),
    "config": node(CACHE, made(CACHE, c=made("transformers.models.a.configuration_a:AConfig"))),
    "sequence": node(CACHE, made(CACHE, all={"_t": "seq", "p": "builtins:tuple", "v": []})),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("key", ["in_spec", "out_spec"])
def test_structures_of_exporters_are_written_on(name: str, key: str, tmp_path: Path) -> None:
    source = exported(tmp_path / "in", **{key: GOOD[name]})
    rx.optimize(source).save(tmp_path / "out")
    before, after = (json.loads((tmp_path / place / "export.json").read_text())
                     for place in ("in", "out"))  # fmt: skip
    assert after == before


BAD = {
    "class of another package": node("ctypes:CDLL", "null"),
    "function": node("transformers.cache_utils:load", "null"),
    "module of tools": node("transformers.utils.hub:Cache", "null"),
    "class within a class": node("transformers.cache_utils:Cache.Meta", "null"),
    "builtin": node("builtins.eval", "null"),
    "object within": node(CACHE, made(CACHE, a=made("ctypes:CDLL"))),
    "object in a list": node(CACHE, made(CACHE, a=[{"b": made("os:system")}])),
    "type within": node(CACHE, made(CACHE, a={"_t": "type", "p": "subprocess:Popen"})),
    "enumeration": node(CACHE, made(CACHE, a={"__enum__": "x", "fqn": "a.b"})),
    "below": node("builtins.tuple", "null", node("ctypes:CDLL", "null")),
    "tensor with parts": {"type": None, "context": "[]", "children_spec": []},
    "key twice": '[1, {"type": null, "type": "ctypes:CDLL", "context": null, "children_spec": []}]',
    "key twice within": node(CACHE, '{"_t": "obj", "_t": "type"}'),
    "no text": "[1, 2]",
    "deep": "[" * 400 + "]" * 400,
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("key", ["in_spec", "out_spec"])
def test_what_names_anything_else_is_not_read(name: str, key: str, tmp_path: Path) -> None:
    source = exported(tmp_path / "in", **{key: BAD[name]})
    with pytest.raises(rx.InputError, match="manifest of the export"):
        rx.optimize(source)


def test_what_nobody_reads_is_not_written(tmp_path: Path) -> None:
    further = node("builtins.tuple", "null", LEAF, aux={"type": "ctypes:CDLL"})
    rx.optimize(exported(tmp_path / "in", out_spec=further)).save(tmp_path / "out")
    assert "ctypes" not in (tmp_path / "out" / "export.json").read_text()


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

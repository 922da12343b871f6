"""Loading: the four kinds of source, the private copy, lazy weights, and its speed."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hostile.frames import GAIN, constants, external_gain, external_model, norm_model, write
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export import optimize
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph import load
from rmsnorm_export.graph.load import load_model, no_gc
from rmsnorm_export.graph.pieces import parse
from rmsnorm_export.graph.save import save_model, to_bytes
from tests.recognize import text_models as text


def test_all_sources_give_the_same_model(tmp_path: Path) -> None:
    proto = norm_model()
    path = write(tmp_path, proto)
    data = path.read_bytes()
    sources = [path, str(path), data, bytearray(data), memoryview(data), proto, ir.load(path)]
    loaded = [load_model(source) for source in sources]
    assert {to_bytes(one.model) for one in loaded} == {to_bytes(ir.load(path))}
    assert [one.path for one in loaded] == [path, path, *[None] * 5]
    assert {(one.external, one.notes) for one in loaded} == {((), ())}


def test_weights_are_bound_to_the_folder_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    external_model(tmp_path, data=GAIN)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(ir.ExternalTensor, "_load")
        loaded = load_model("model.onnx")
        to_bytes(loaded.model, weights="reference")
    assert loaded.path == tmp_path / "model.onnx"
    assert loaded.external == ("w.bin",)
    monkeypatch.chdir("/")
    gain = loaded.model.graph.initializers["w"].const_value
    assert gain is not None
    assert gain.numpy().tobytes() == GAIN


def test_weights_larger_than_any_memory_are_loaded_and_saved_beside(tmp_path: Path) -> None:
    """795 GiB, a hole in a file: without reading a byte of them."""
    large = external_gain("w.bin", 0, 795 << 30)
    large.name, large.dims[:] = "large", [795, 1 << 28]
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", 795 << 30)
    path = write(tmp_path, norm_model(initializers=[*constants(), large]))
    start = time.process_time()
    save_model(load_model(path).model, tmp_path / "out.onnx", weights="reference")
    assert time.process_time() - start < 1
    stored = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer[-1]
    assert stored.external_data == large.external_data


def test_external_data_without_a_folder_is_noted(tmp_path: Path) -> None:
    loaded = load_model(external_model(tmp_path, data=GAIN).read_bytes())
    assert loaded.external == ("w.bin",)
    assert "not checked" in " ".join(loaded.notes)
    with pytest.raises(InputError, match=r"\.\./w\.bin"):
        load_model(external_model(tmp_path, "../w.bin").read_bytes())


@pytest.mark.parametrize("kind", ["proto", "onnx_ir"])
def test_the_callers_model_is_never_changed(kind: str, tmp_path: Path) -> None:
    path = external_model(tmp_path, data=GAIN)
    source = ir.load(path) if kind == "onnx_ir" else norm_model()

    def state() -> bytes:
        proto = ir.to_proto(source) if isinstance(source, ir.Model) else source
        return proto.SerializeToString()

    before, model = state(), load_model(source).model
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.name = f"renamed_{value.name}"
    for node in model.graph:
        node.metadata_props["seen"] = "yes"
        node.outputs[0].shape = None
    model.opset_imports["new"] = 1
    model.graph.outputs.clear()
    to_bytes(model, weights="reference")
    assert state() == before


def test_external_data_in_an_attribute_is_checked(tmp_path: Path) -> None:
    gone = external_gain("gone.bin", None, None)
    for value in ({"value": gone}, {"several": [gone]}):
        model = norm_model()
        model.graph.node.append(helper.make_node("Constant", [], ["c"], **value))
        with pytest.raises(InputError, match=r"'w'.*gone\.bin"):
            load_model(write(tmp_path, model))


@pytest.mark.parametrize("reverse", [False, True])
def test_onnx_ir_models_keep_the_folder_of_their_data(reverse: bool, tmp_path: Path) -> None:
    """That of onnx_ir's functions, too, which it does not tell them, and in any order of nodes."""
    proto = onnx.load(external_model(tmp_path, data=GAIN), load_external_data=False)
    gain = external_gain("w.bin", 0, 32)
    body = [helper.make_node("Constant", [], ["c"], value=gain)]
    opsets = [helper.make_opsetid("", 18)]
    proto.functions.append(helper.make_function("local", "F", [], ["c"], body, opsets))
    nodes = [*proto.graph.node, helper.make_node("F", [], ["f"], domain="local")]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[::-1] if reverse else nodes)
    source = ir.load(write(tmp_path, proto))
    loaded = load_model(source)
    assert loaded.folder == str(tmp_path)
    assert to_bytes(loaded.model, weights="embed").count(GAIN) == 2
    source.doc_string = "\udcff"
    if reverse:
        with pytest.raises(InputError, match="as protobuf"):
            load_model(source)


@pytest.mark.parametrize("source", [None, 3, ["model.onnx"], onnx.GraphProto()])
def test_what_is_no_source(source: object) -> None:
    with pytest.raises(UsageError, match="no source of a model"):
        load_model(source)  # type: ignore[arg-type]


def test_impossible_paths() -> None:
    for name in ("a\0b.onnx", "x" * 300 + ".onnx", "no/such/m.onnx", "\udcff.onnx"):
        for read in (load_model, optimize):
            with pytest.raises(InputError) as caught:
                read(name)
            str(caught.value).encode()  # can be printed


@pytest.mark.parametrize("enabled", [True, False])
def test_no_gc_restores_the_state(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(KeyError), no_gc(), no_gc():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def chain(nodes: int) -> onnx.ModelProto:
    """``nodes`` elementwise nodes in a row."""
    body = "\n".join(f"v{i + 1} = Mul(v{i}, w)" for i in range(nodes))
    return text.model(body, inputs="float[B,8] v0", outputs=f"float[B,8] v{nodes}")


def test_a_long_chain_out_of_order_is_sorted_in_linear_time() -> None:
    """20,000 nodes in reverse: no recursion, no quadratic search."""
    model = chain(20_000)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    start = time.process_time()
    loaded = load_model(model)
    assert loaded.model.graph[0].outputs[0].name == "v1"
    assert time.process_time() - start < 10


def test_a_long_cycle_is_found_in_linear_time() -> None:
    model = chain(20_000)
    model.graph.node[0].input[0] = "v20000"
    with pytest.raises(InputError, match="cycle"):
        load_model(model)


@pytest.mark.parametrize("domain", ["", "ai.onnx", "other"])
def test_an_operator_set_may_be_imported_twice(domain: str) -> None:
    """As ``onnx.compose.merge_models`` writes it."""
    model = norm_model()
    for _ in range(2):
        model.opset_import.add(domain=domain, version=18)
    assert load_model(model).model.opset_imports[""] == 18
    model.opset_import.add(domain=domain, version=17)
    with pytest.raises(InputError, match="two versions"):
        load_model(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda path: rx.optimize(path, prove=True),
        lambda path: rx.inspect(path, runtime="onnxruntime", health=True),
        lambda path: rx.bench(path, targets=("portable", "ort"), seconds=0.1),
    ],
    ids=["optimize", "inspect", "bench"],
)
def test_a_file_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], object]
) -> None:
    path, parse = write(tmp_path, norm_model()), load._from_bytes
    parsed: list[str] = []

    def counted(data: bytes, description: str, **source: Any) -> load.LoadedModel:
        parsed.append(description)
        return parse(data, description, **source)

    monkeypatch.setattr(load, "_from_bytes", counted)
    call(path)
    assert parsed == [str(path)]


# What was checked is what is used: a file that was changed since is refused.

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 18]> main (float[B, 8] x) => (float[B, 8] y)'
    "{ y = Identity (x) }"
)


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

    def then_replaced(*arguments: Any) -> Any:
        parsed = parse(*arguments)
        other.replace(path)
        return parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmsnorm_export.graph.load.parse", then_replaced)
        loaded = load_model(path)
    with pytest.raises(rx.InputError, match="changed"):
        loaded.to_bytes()

"""Loading: the four kinds of source, the private copy, lazy weights, and its speed."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hostile_models import GAIN, external_model, norm_model, write
from onnx import TensorProto, helper

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import load_model, no_gc
from rmsnorm_export.graph.save import to_bytes


def test_all_sources_give_the_same_model(tmp_path: Path) -> None:
    proto = norm_model()
    path = write(tmp_path, proto)
    data = path.read_bytes()
    sources = [path, str(path), data, bytearray(data), memoryview(data), proto, ir.load(path)]
    texts = {to_bytes(load_model(source).model) for source in sources}
    assert texts == {to_bytes(ir.load(path))}


def test_path_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    external_model(tmp_path, data=GAIN)
    monkeypatch.chdir(tmp_path)
    loaded = load_model("model.onnx")
    assert loaded.path == tmp_path / "model.onnx"
    assert loaded.description == "model.onnx"
    assert loaded.size == (tmp_path / "model.onnx").stat().st_size
    assert loaded.external == ("w.bin",)
    assert loaded.external_size == 32
    # Bound to the folder, not to the working directory of the moment.
    monkeypatch.chdir("/")
    gain = loaded.model.graph.initializers["w"].const_value
    assert gain is not None
    assert gain.numpy().tobytes() == GAIN


def test_memory_sources_have_no_path() -> None:
    proto = norm_model()
    for source in (proto, proto.SerializeToString(), ir.from_proto(proto)):
        loaded = load_model(source)
        assert loaded.path is None
        assert loaded.external == ()
        assert loaded.notes == ()


def test_external_data_without_a_folder_is_noted(tmp_path: Path) -> None:
    data = external_model(tmp_path, data=GAIN).read_bytes()
    loaded = load_model(data)
    assert loaded.external == ("w.bin",)
    assert loaded.external_size == 0
    assert "not checked" in " ".join(loaded.notes)
    hostile = external_model(tmp_path, "../w.bin").read_bytes()
    with pytest.raises(InputError, match=r"\.\./w\.bin"):
        load_model(hostile)


def _mutilate(model: ir.Model) -> None:
    """Change everything that an optimizer may change."""
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.name = f"renamed_{value.name}"
    for node in model.graph:
        node.metadata_props["seen"] = "yes"
        node.outputs[0].shape = None
    model.graph.remove(list(model.graph)[-1:], safe=False)
    model.opset_imports["new"] = 1


def test_the_callers_proto_is_never_changed() -> None:
    proto = norm_model()
    before = proto.SerializeToString()
    loaded = load_model(proto)
    _mutilate(loaded.model)
    loaded.model.graph.outputs.clear()
    to_bytes(loaded.model)
    assert proto.SerializeToString() == before


def test_the_callers_onnx_ir_model_is_never_changed(tmp_path: Path) -> None:
    source = ir.load(external_model(tmp_path, data=GAIN))
    before = ir.to_proto(source).SerializeToString()
    loaded = load_model(source)
    _mutilate(loaded.model)
    loaded.model.graph.outputs.clear()
    to_bytes(loaded.model, weights="reference")
    assert ir.to_proto(source).SerializeToString() == before


def test_weights_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external_model(tmp_path, data=GAIN)

    def refuse(_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(ir.ExternalTensor, "_load", refuse)
    loaded = load_model(path)
    to_bytes(loaded.model, weights="reference")


def test_external_data_in_an_attribute_is_checked(tmp_path: Path) -> None:
    model = norm_model()
    tensor = TensorProto(
        name="far", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="gone.bin")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], name="const", value=tensor))
    with pytest.raises(InputError, match=r"'far'.*gone\.bin"):
        load_model(write(tmp_path, model))


@pytest.mark.parametrize("source", [None, 3, ["model.onnx"], onnx.GraphProto()])
def test_wrong_type(source: object) -> None:
    with pytest.raises(UsageError, match=type(source).__name__):
        load_model(source)  # type: ignore[arg-type]


def test_standard_input_is_the_callers() -> None:
    with pytest.raises(UsageError, match="Standard input"):
        load_model("-")


@pytest.mark.parametrize("name", ["a\0b.onnx", "x" * 300 + ".onnx", "no/such/folder/m.onnx"])
def test_impossible_paths(name: str) -> None:
    with pytest.raises(InputError):
        load_model(name)


def test_path_that_is_not_unicode(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_model(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx"))
    str(caught.value).encode()  # can be printed
    assert r"\udcff.onnx" in str(caught.value)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_gc_restores_the_state(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(KeyError), no_gc():
            assert not gc.isenabled()
            with no_gc():
                pass
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def chain(nodes: int) -> onnx.ModelProto:
    """``nodes`` elementwise nodes in a row, each with its shape."""
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(domain="", version=18)
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, np.float32), "w"))
    graph.input.append(helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["b", 64]))
    for i in range(nodes):
        graph.node.add(op_type="Mul", name=f"n{i}", input=[f"v{i}", "w"], output=[f"v{i + 1}"])
        info = helper.make_tensor_value_info(f"v{i + 1}", TensorProto.FLOAT, ["b", 64])
        graph.value_info.append(info)
    del graph.value_info[-1]
    graph.output.append(info)
    return model


def test_checks_cost_less_than_half_of_reading(tmp_path: Path) -> None:
    """The checks take about 2 microseconds a node, onnx_ir 13 to 25; CPU time, best of three."""
    path = write(tmp_path, chain(10_000))

    def best(function: object) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            with no_gc():
                function(path)  # type: ignore[operator]
            times.append(time.process_time() - start)
        return min(times)

    assert best(load_model) < 1.5 * best(ir.load)


def test_a_long_chain_out_of_order_is_sorted_in_linear_time() -> None:
    """20,000 nodes in reverse: no recursion, no quadratic search."""
    model = chain(20_000)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    start = time.process_time()
    loaded = load_model(model)
    assert loaded.model.graph[0].name == "n0"
    assert time.process_time() - start < 10


def test_a_long_cycle_is_named_in_short() -> None:
    model = chain(20_000)
    model.graph.node[0].input[0] = "v20000"
    with pytest.raises(InputError, match=r"cycle.*\n.* more \.\.\."):
        load_model(model)


@pytest.mark.parametrize("domain", ["", "ai.onnx", "other"])
def test_an_operator_set_may_be_imported_twice(domain: str) -> None:
    """As ``onnx.compose.merge_models`` writes it."""
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    for _ in range(2):
        model.opset_import.add(domain=domain, version=18)
    assert load_model(model).model.opset_imports[""] == 18
    model.opset_import.add(domain=domain, version=17)
    with pytest.raises(InputError, match="two versions"):
        load_model(model)

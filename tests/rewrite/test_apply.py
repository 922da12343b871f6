"""New nodes in the place of old ones: every name, output and document survives, order holds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from recognize.text_models import CONSTANTS, function, model, norm, optimized

import rmsnorm_export as rx
from rmsnorm_export.graph.names import Names
from rmsnorm_export.lower.targets import Target

RESIDUAL = "float[2,3,8] x, float[2,3,8] r"
SUM = "h = Add(x, r)\n"


def test_names_in_linear_time() -> None:
    # Counting up from 2 for every wish takes 200 million steps here, a minute or more.
    names = Names(ir.from_proto(model(norm("x", "y"))))
    start = time.perf_counter()
    assert len({names("y") for _ in range(20_000)}) == 20_000
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("target", ["portable", "ort"])
@pytest.mark.parametrize("silent", [0, 1, 3], ids=["none", "the last", "the last three"])
def test_a_norm_is_of_its_module_and_not_of_the_sum_in_front(target: Target, silent: int) -> None:
    """Exporters leave single nodes, a last Cast for one, without a module."""
    key = "pkg.torch.onnx.name_scopes"
    source = model(SUM + norm("h", "y"), inputs=RESIDUAL, outputs="float[2,3,8] y")
    nodes = source.graph.node
    for index, node in enumerate(nodes[: len(nodes) - silent]):
        path = "layers.1.norm" if index else "layers.0"
        node.metadata_props.add(key=key, value=f"['', '{path}', 'op']")
    report, proto = optimized(source, target)
    (node,) = [n for n in proto.graph.node if "Skip" in n.op_type]
    assert report.fused[0].module == "layers.1.norm"
    assert [rx.inspect(proto).kept[0].module] == ["layers.1.norm"]
    assert [p.value for p in node.metadata_props if p.key == key] == ["['', 'layers.1.norm', 'op']"]


@pytest.mark.parametrize("text", ["[", "5", "('', 'layers.0', 'op')", "['', 1, 'op']", "{[]: 1}"])
def test_what_is_no_list_of_names_tells_no_module(text: str) -> None:
    source = model(norm("x", "y"))
    for node in source.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    assert rx.inspect(source).fused[0].module is None


# Raising the opset for RMSNormalization: nothing of the model gets lost on the way.

BIG = 2000
"""A weight of 8 kB: too large to be shown to the version converter."""


def _big(body: str, inputs: str = "", outputs: str = "") -> onnx.ModelProto:
    shape = f"float[B,S,{BIG}]"
    source = model(
        body, inputs=f"{shape} x{inputs}", outputs=f"{shape} y{outputs}", constants=CONSTANTS
    )
    data = np.linspace(0.5, 2, BIG, dtype=np.float32)
    source.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))
    return source


BIG_WEIGHTS = {
    "read in the main graph": (norm("x", "y"), "", ""),
    "read in a branch": (
        "y = If (c) <then_branch = t () => (float[B,S,2000] u) {" + norm("x", "u")
        + "}, else_branch = f () => (float[B,S,2000] v) { v = Relu(x) }>",
        ", bool c", "",
    ),
    "an output as well": (norm("x", "y"), "", ", float[2000] w"),
    "a default of an input": (norm("x", "y"), ", float[2000] w", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BIG_WEIGHTS)
def test_a_big_weight(name: str) -> None:
    report, proto = optimized(_big(*BIG_WEIGHTS[name]), "onnx")
    assert len(report.fused) == 1
    assert [t.name for t in proto.graph.initializer] == ["w"]


def test_a_model_is_not_raised_for_norms_that_it_has_not() -> None:
    source = model(
        "y = my.F(x)", imports=', "my" : 1', functions=function("F", "(a) => (b)", "b = Relu(a)")
    )
    report, proto = optimized(source, "onnx")
    assert (report.opset_before, report.opset_after, report.notes) == (17, 17, ())
    assert proto.functions


@pytest.mark.parametrize("weights", ["auto", "copy", "embed"])
def test_small_external_tensors_keep_their_folder(tmp_path: Path, weights: str) -> None:
    """A bias of 64 numbers, and one in a function that the converter does not see."""
    size = "float[2,3,64]"
    body = "h = Add(x, b)\n" + norm("h", "y", "", None)
    model_ = model(body, inputs=f"{size} x", outputs=f"{size} y", constants=CONSTANTS)
    bias = np.linspace(-1, 1, 64, dtype=np.float32)
    model_.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b"))
    source, other = tmp_path / "source" / "m.onnx", tmp_path / "other" / "m.onnx"
    source.parent.mkdir()
    other.parent.mkdir()
    external = {"save_as_external_data": True, "location": "m.data", "size_threshold": 64}
    onnx.save(model_, source, **external)
    stored = onnx.load(source, load_external_data=False)
    (value,) = (one for one in stored.graph.initializer if one.name == "b")
    body_ = [onnx.helper.make_node("Constant", [], ["c"], value=value)]
    opsets = [onnx.helper.make_opsetid("", 17)]
    unseen = onnx.helper.make_function("com.microsoft", "Unseen", [], ["c"], body_, opsets)
    stored.functions.append(unseen)
    onnx.save(stored, source)
    result = rx.optimize(source, target="onnx", prove=True)
    assert result.report.opset_after == 23
    result.save(other, weights=weights)
    assert rx.verify(source, other).passed


def test_the_devices_of_a_model_stay_and_what_does_not_is_said() -> None:
    source = model(norm("x", "y"))
    source.ir_version = 11
    source.configuration.add(name="pair", num_devices=2)
    result = rx.optimize(source, target="onnx")
    assert list(ir.to_proto(result.model).configuration) == list(source.configuration)
    assert not any("devices" in note for note in result.report.notes)
    source.graph.node[0].device_configurations.add(configuration_id="pair")
    notes = rx.optimize(source, target="onnx").report.notes
    assert any("spread over devices is not carried over" in note for note in notes)

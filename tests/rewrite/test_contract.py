"""The inputs, outputs and texts of a graph are what they were, whatever a command does to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.errors import Error
from rmsnorm_export.graph.contract import Contract
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.session import load_session, run_session
from tests.sample import crossed
from tests.tools.tables import table

TABLE: dict[str, Any] = table(__file__)
WEIGHTS, MODELS, COMMANDS = (TABLE[part] for part in ("weights", "models", "commands"))


def _model(name: str) -> onnx.ModelProto:
    inputs, values = MODELS[name]["inputs"], MODELS[name]["outputs"].split(", ")
    untyped = [value for value in values if " " not in value]  # the parser wants a type of each
    typed = ", ".join(f"float {value}" if value in untyped else value for value in values)
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18], producer_name: "mine", doc_string: "a model",
         metadata_props: ["key": "value"]>
        graph ({inputs}) => ({typed})
        <float epsilon = {{1e-5}}, float two = {{2}}, int64[1] axes = {{-1}}, bool choice = {{1}}>
        {{{TABLE["norm"]}{MODELS[name].get("more", "")}}}""")
    random, declared = np.random.default_rng(0), {one.name for one in model.graph.input}
    for one, shape in WEIGHTS.items():
        array = random.normal(0, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, one))
    for value in model.graph.output:
        if value.name in untyped:
            value.ClearField("type")
    if "choice" not in declared:
        del model.graph.initializer[3]
    for value in (*model.graph.input, *model.graph.output):
        value.doc_string = f"the value {value.name}"
        value.metadata_props.append(onnx.StringStringEntryProto(key="unit", value=value.name))
    model.graph.doc_string = "a graph"
    return model


def _terms(model: onnx.ModelProto) -> list[object]:
    """What a caller sees; of an output that is an input as well, the input."""
    graph, stored = model.graph, {tensor.name for tensor in model.graph.initializer}
    names = {value.name for value in graph.input}
    rows: list[object] = [
        (value.name, value.SerializeToString(), value.name in stored) for value in graph.input
    ]
    for value in graph.output:
        kind = (value.SerializeToString(),)
        rows.append((value.name, *(() if value.name in names else kind)))
    props = {prop.key: prop.value for prop in model.metadata_props}
    return [*rows, props["key"], model.doc_string, model.producer_name, graph.doc_string]


def _run(model: onnx.ModelProto, replaced: dict[str, Array]) -> list[Array]:
    feeds = {"x": np.random.default_rng(1).normal(0, 1, (3, 64)).astype(np.float32)}
    idle = {"idle": np.zeros((3, 5), np.float32), "idle2": np.zeros(2, np.float32)}
    names = {value.name for value in model.graph.input}
    feeds |= {name: array for name, array in idle.items() if name in names}
    session = load_session(model.SerializeToString(), threads=1)
    outputs = [value.name for value in model.graph.output]
    results = run_session(session, feeds | replaced, outputs)
    return [results[name] for name in outputs]


@crossed(2, name=[*MODELS], command=[*COMMANDS])
def test_what_callers_rely_on_stays(name: str, command: str) -> None:
    """With the defaults, and with what a caller gives in their place."""
    options, model = COMMANDS[command], _model(name)
    after = ir.to_proto(rx.optimize(model, **options).model)
    assert _terms(after) == _terms(model)
    random, stored = np.random.default_rng(2), {one.name for one in model.graph.initializer}
    replaced = {
        value.name: random.normal(0, 0.2, WEIGHTS[value.name]).astype(np.float32)
        for value in model.graph.input
        if value.name in stored & {*WEIGHTS}
    }
    coarse = {"int8": 0.05, "int4": 0.25}.get(command, 1e-5)
    for others in ({}, replaced) if replaced else ({},):
        pairs = zip(_run(model, others), _run(after, others), model.graph.output, strict=True)
        for before, now, value in pairs:
            is_stored = value.name in {*WEIGHTS, "x", "y", "same"}
            bound = (1e-5 if is_stored else coarse) * np.abs(before).max()
            assert now.shape == before.shape
            assert np.abs(now - before).max() <= bound, value.name


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_of_stored_weights_are_quantized_beside_defaults(kind: Any) -> None:
    model = _model("defaults and outputs of every kind")
    report = rx.optimize(model, target="ort", quantize=kind).report
    quantized = report.quantized
    assert quantized is not None
    assert any("3 initializers are graph inputs as well" in note for note in report.notes)
    assert (quantized.products, quantized.kept) == (3, 1)
    assert quantized.compared.startswith("4 outputs differ")  # sum, last, y, same


def test_nothing_computed_is_nothing_compared() -> None:
    model = _model("one output twice")
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("shown", 1, [64, 96]))
    with pytest.raises(rx.InputError, match="computes no output"):
        rx.optimize(model, quantize="int8")
    model = _model("defaults and outputs of every kind")
    for name in ("hidden", "shown", "narrow"):
        shape = list(WEIGHTS[name])
        model.graph.input.append(helper.make_tensor_value_info(name, 1, shape))
    with pytest.raises(rx.InputError, match="replaced by callers"):
        rx.optimize(model, quantize="int4")


def test_a_graph_that_takes_or_gives_something_else_is_not_written() -> None:
    model = ir.from_proto(_model("one output twice"))
    contract = Contract(model)
    model.graph.outputs.pop(1)
    with pytest.raises(Error, match="lost outputs"):
        contract.restore(model)
    model.graph.inputs.append(ir.Value(name="other"))
    with pytest.raises(Error, match="takes other inputs"):
        contract.restore(model)


def test_a_weight_that_a_pass_stores_anew_by_its_name_is_the_output_that_it_was() -> None:
    model = ir.from_proto(_model("defaults and outputs of every kind"))
    contract, before = Contract(model), model.graph.initializers["shown"].const_value
    product = next(node for node in model.graph if node.outputs[0].name == "c")
    changed = contract.set_aside(model).graph.initializers["shown"]
    assert not changed.is_graph_output()
    changed.const_value = ir.tensor(np.ones((64, 96), np.float32), name="shown")
    graph = contract.restore(model).graph
    assert graph.outputs[1].name == "shown"
    assert graph.outputs[1].const_value is before
    assert product.inputs[1] is changed
    names = [tensor.name for tensor in ir.to_proto(model).graph.initializer]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("name", ["defaults and outputs of every kind", "in branches"])
def test_a_package_serves_them(name: str, tmp_path: Path) -> None:
    model, path = _model(name), tmp_path / "model.onnx"
    onnx.save(model, path)
    rx.package_model(path, tmp_path / "served", name="net", kind="cpu")
    assert _terms(onnx.load(tmp_path / "served" / "net" / "1" / "model.onnx")) == _terms(model)
    config = (tmp_path / "served" / "net" / "config.pbtxt").read_text()
    words = [f'{kind} {{ name: "{value.name}"' for kind in ("input", "output")
             for value in getattr(model.graph, kind)
             if kind == "output" or value.name in ("x", "idle", "idle2")]  # fmt: skip
    assert [
        line.partition('" ')[0] + '"' for line in config.splitlines() if "{ name" in line
    ] == words

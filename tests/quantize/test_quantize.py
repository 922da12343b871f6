"""``--quantize``: what the quantizers make of a model, what it costs, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.quantize.left import MOST_TRIALS, Loss, left_out
from rmsnorm_export.quantize.result import QUANTIZED_RTOL
from rmsnorm_export.runtime.session import load_session, run_session
from tests.deploy.models import FACTORY, write
from tests.tools.tables import table

pytest.importorskip("onnxscript")

TEXT = table(__file__)["text"]
KINDS: tuple[Literal["int4", "int8"], ...] = ("int4", "int8")


def normed_product(
    dtype: Any = np.float32, activation: float = 1.0, ignored: float = 0.0
) -> onnx.ModelProto:
    """A norm and a product as PyTorch stores it; one element is larger, and one has no effect.

    Args:
        dtype: of all.
        activation: scales the first element of each row, which the product does not read.
        ignored: weight of the same element, where ``activation`` is 0.
    """
    name = {np.float32: "float", np.float16: "float16"}[dtype]
    model = onnx.parser.parse_model(TEXT.replace("TYPE", name))
    weight = np.random.default_rng(0).standard_normal((72, 64)).astype(dtype)
    scale = np.ones(64, dtype)
    if activation != 1:
        scale[0], weight[:, 0] = activation, ignored
    for key, array in {"weight": weight, "scale": scale, "least": np.array([1e-5], dtype)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, key))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_quantized_behind_norms_of_one_node(kind: Literal["int4", "int8"]) -> None:
    model = normed_product()
    result = rx.optimize(model, quantize=kind)
    assert result.report.target == "ort"
    assert len(result.report.fused) == 1
    quantized = result.report.quantized
    assert quantized is not None
    assert (quantized.kind, quantized.products, quantized.kept) == (kind, 1, 0)
    assert (quantized.problem, quantized.not_compared) == ("", "")
    assert quantized.compared.startswith("1 output differs by at most 0.")
    assert quantized.bytes_after < {"int4": 0.3, "int8": 0.35}[kind] * quantized.bytes_before
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    before, after = (
        run_session(load_session(content), {"x": x})["y"]
        for content in (model.SerializeToString(), result.to_bytes())
    )
    share = np.abs(after - before).max() / np.abs(before).max()
    assert 0 < share < QUANTIZED_RTOL[kind] / 2
    assert any(node.op_type == "Transpose" for node in ir.from_proto(model).graph), "left as it was"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frugal_session_rounds_as_others_do(kind: Literal["int4", "int8"]) -> None:
    """What is compared is what is used: ONNX Runtime rounds activations in packed products."""
    content = rx.optimize(normed_product(), quantize=kind).to_bytes()
    x = {"x": np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)}
    usual, frugal = (
        run_session(load_session(content, frugal=how), x)["y"] for how in (False, True)
    )
    assert np.array_equal(usual, frugal)


def test_one_large_activation_takes_no_steps_of_the_others() -> None:
    """Activations of a trained model reach 22,552: they are rounded where that loses little."""
    for kind in KINDS:
        quantized = rx.optimize(normed_product(activation=1e4), quantize=kind).report.quantized
        assert quantized is not None
        assert (quantized.problem, quantized.activations) == ("", "as they are")
        assert ("5 times as long" in quantized.slow_words()) == (kind == "int8")


def test_single_weights_that_lose_much_are_found_among_many() -> None:
    """In as many trials as are allowed; where nothing helps, none is left out."""
    costs = {f"w{number}": 0.001 for number in range(100)} | {"w37": 1.0, "w80": 0.5}
    trials = []

    def lose(names: Collection[str], left: Collection[str], most: float = 0.3) -> Loss:
        assert not {*names} & {*left}
        trials.append(names)
        lost = sum(costs[name] for name in names)
        return Loss(problem="" if lost <= most else "too much", amount=lost)

    found = left_out(dict.fromkeys(costs, 64), lose)
    assert [(group.names, group.loss) for group in found] == [(("w37",), 1.0), (("w80",), 0.5)]
    assert len(trials) < MOST_TRIALS
    assert left_out(dict.fromkeys(costs, 64), lambda *both: lose(*both, 0.0)) == []


@pytest.mark.parametrize(("kind", "ignored", "bits"), [("int8", 1e4, {8}), ("int4", 100, {4, 8})])
def test_a_weight_that_loses_too_much_is_left_out(
    kind: Literal["int4", "int8"], ignored: float, bits: set[int]
) -> None:
    """Of two products: one has a weight that takes all steps of its block, and no effect."""
    model = normed_product(activation=0, ignored=ignored)
    good = np.random.default_rng(2).standard_normal((64, 72)).astype("f")
    model.graph.initializer.append(numpy_helper.from_array(good, "good"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["scaled", "good"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["tokens", 72]))
    result = rx.optimize(model, quantize=kind)
    quantized = result.report.quantized
    assert quantized is not None
    assert (quantized.problem, list(quantized.left)) == ("", ["weight"])
    assert QUANTIZED_RTOL[kind] < quantized.left["weight"] < np.inf
    assert "since they lose most: weight (" in quantized.left_words()
    assert quantized.activations == "in int8"
    nodes = [node for node in result.model.graph if node.op_type == "MatMulNBits"]
    assert {node.attributes.get_int("bits") for node in nodes} == bits


def test_functions_of_other_exporters_are_taken() -> None:
    """mobius-onnx has a body of an operator of ONNX Runtime, of which calls omit outputs."""
    body = """<opset_import: ["" : 20], domain: "DOMAIN"> NAME (x) => (y, other) {
        y = Identity (x) other = Neg (x) }"""
    model = normed_product()
    for domain, name in (("com.microsoft", "Gelu"), ("mine", "Same")):
        text = body.replace("DOMAIN", domain).replace("NAME", name)
        model.functions.append(onnx.parser.parse_function(text))
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
        last = model.graph.node[-1]
        last.input[0], before = f"of_{name}", last.input[0]
        call = onnx.helper.make_node(name, [before], [f"of_{name}"], domain=domain)
        model.graph.node.insert(len(model.graph.node) - 1, call)
    result = rx.optimize(model, quantize="int8")
    counts = [node.op_type for node in result.model.graph]
    assert (counts.count("Gelu"), counts.count("MatMulNBits"), counts.count("Same")) == (1, 1, 0)
    assert ("com.microsoft", "Gelu", "") in result.model.functions


def test_what_loses_too_much_is_said_and_is_exit_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One weight of 10,000 takes all steps of its block, and meets activations of 0."""
    onnx.save(normed_product(activation=0, ignored=1e4), tmp_path / "m.onnx")
    out = tmp_path / "q.onnx"
    assert main(["optimize", f"{tmp_path / 'm.onnx'}", "-o", f"{out}", "--quantize", "int8"]) == 4
    said = capsys.readouterr()
    assert "  lost: y is off by " in said.out
    assert "error: The quantization to int8 loses more than is allowed." in said.err
    assert out.exists()
    pipeline = tmp_path / "p.toml"
    tables = '[pipeline]\nname = "p"\n[model]\npath = "m.onnx"\n[optimize]\nquantize = "int8"\n'
    pipeline.write_text(tables)
    done = rx.run_pipeline(pipeline)
    assert done.exit_code == 4
    assert "loses more than is allowed" in str(done.error)


def test_what_cannot_be_quantized_is_refused() -> None:
    for kind in KINDS:
        half = rx.optimize(normed_product(np.float16), quantize=kind).report.quantized
        assert half is not None
        assert half.problem == ""
    without = normed_product()
    without.graph.node[-1].op_type = "Add"
    without.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((64, 1), "f"), "weight"))
    with pytest.raises(rx.InputError, match="cannot be quantized to int4"):
        rx.optimize(without, quantize="int4")
    with pytest.raises(rx.InputError, match="others have weights in few bits already"):
        rx.optimize(rx.optimize(normed_product(), quantize="int8").model, quantize="int4")
    with pytest.raises(rx.UsageError, match="of use to a quantization only"):
        rx.optimize(without, calibrate=Path("text.txt"))
    with pytest.raises(rx.UsageError, match="ONNX Runtime alone has"):
        rx.optimize(without, quantize="int4", target="onnx")


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [("seq(float[N])", "SequenceLength", "sequence"), ("string[N]", "Size", "string"),
     ("optional(float[N])", "OptionalHasElement", "optional")],
)  # fmt: skip
def test_an_input_that_is_not_fed_is_named(kind: str, size: str, name: str) -> None:
    source = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[B,40] x, {kind} odd) => (float[B,C] y)'
        f"{{ n = {size} (odd)\n m = Cast <to = 1> (n)\n p = MatMul (x, w)\n y = Add (p, m) }}"
    )
    weight = np.random.default_rng(0).standard_normal((40, 24)).astype("f")
    source.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    done = rx.optimize(source, target="ort", quantize="int8").report.quantized
    assert done is not None
    assert (done.products, done.compared) == (1, "")
    assert f"its input 'odd' has the type {name};" in done.not_compared


@pytest.mark.parametrize("absent", ["onnxruntime", "onnxscript"])
def test_a_quantizer_that_is_not_installed_is_said_before_anything_is_read(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == absent:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(rx.BackendMissingError, match="--quantize int4 needs a package") as caught:
        rx.optimize(tmp_path / "none.onnx", quantize="int4")
    assert absent in caught.value.fix


def test_a_pipeline_quantizes_and_compares_within_its_bounds(tmp_path: Path) -> None:
    """Linear layers of rows are Gemm, which become products and sums."""
    path = write(tmp_path, "export", '[optimize]\nquantize = "int8"', "[verify]")
    (tmp_path / "factory.py").write_text(FACTORY)
    done = rx.run_pipeline(path)
    assert done.error is None, done.error
    assert done.step("verify").summary.startswith("the models agree: ")
    report = json.loads((tmp_path / "out/optimize/report.json").read_text())
    assert (report["quantized"]["products"], report["quantized"]["kept"]) == (2, 0)
    write(tmp_path, "export", '[optimize]\nquantize = "int8"', "[verify]\nrtol = 1e-4")
    assert rx.run_pipeline(path).step("verify").summary.startswith("the models DIFFER: ")

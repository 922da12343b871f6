"""``--for``: what is chosen for a runtime, what is refused, and who is said to run a file."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.rewrite.runs import runs_in
from rmsnorm_export.runtime.consumers import (
    CONSUMERS,
    FUNCTIONS,
    by_name,
    consumer,
    has_operator,
    unknown,
)
from tests.tools.runtimes.models import block


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("onnxruntime", "1.32"),
        ("ONNXRuntime@1.17", "1.17"),
        ("onnxruntime@1.17.3", "1.17"),
        ("onnxruntime@1.21", "1.18"),
        ("onnxruntime@1.31.1", "1.31"),
        ("onnxruntime@1.32", "1.32"),
        ("openvino@2026.4", "2026.4"),
    ],
)
def test_a_version_has_the_row_that_holds_from_it_on(text: str, since: str) -> None:
    assert consumer(text).since == since


def test_functions_are_inlined_for_a_runtime_without_them() -> None:
    """Others' functions, too."""
    model = block(TensorProto.FLOAT)
    inner = [helper.make_node("Neg", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("theirs", "Negate", ["a"], ["b"], inner, imports))
    model.opset_import.append(helper.make_opsetid("theirs", 1))
    model.graph.node[-1].CopyFrom(
        helper.make_node("Negate", model.graph.node[-1].input, ["output"], domain="theirs")
    )
    result = rx.optimize(model, runtime="openvino")
    assert not result.model.functions
    assert {node.domain for node in result.model.graph} == {""}
    assert "1 function inlined" in result.report.notes[-1]
    kept = rx.optimize(model, runtime="onnxruntime")
    assert len(kept.model.functions) == 1


def _with_operator(kind: str) -> onnx.ModelProto:
    """The block, its output by an operator of one input."""
    model, (domain, _, name) = block(TensorProto.FLOAT), kind.rpartition(".")
    given = model.graph.node[-1].input[0]
    model.graph.node[-1].CopyFrom(
        helper.make_node(name, [given], ["output"], name="odd", domain=domain)
    )
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def _with_int4() -> onnx.ModelProto:
    model = block(TensorProto.FLOAT, ir_version=10)
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [2], [1, 2]))
    return model


NO_TEST = "none of ONNX's own tests of"


@pytest.mark.parametrize(
    ("model", "runtime", "options", "reason"),
    [
        (_with_int4(), "onnxruntime@1.17", {}, "format version 10; it loads 9 at most"),
        (block(TensorProto.FLOAT, opset=22), "onnxruntime@1.18", {}, "opset 22; it loads 21"),
        (block(TensorProto.FLOAT), "opencv", {"target": "ort"}, "SkipSimplifiedLayerNorm"),
        (_with_operator("com.microsoft.QuickGelu"), "opencv", {}, "QuickGelu (node odd)"),
        (_with_operator("MeanVarianceNormalization"), "opencv", {}, NO_TEST),
        (_with_operator("Det"), "openvino", {}, NO_TEST),
        (
            _with_operator("com.microsoft.LinearAttention"),
            "onnxruntime@1.20",
            {},
            "has no operator",
        ),
        (_with_operator("com.microsoft.NoSuchThing"), "onnxruntime", {}, "has no operator"),
    ],
)
def test_a_model_that_cannot_run_says_why(
    model: onnx.ModelProto, runtime: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(rx.InputError, match="cannot run this model") as caught:
        rx.optimize(model, runtime=runtime, **options)
    assert reason in caught.value.found


def test_what_a_runtime_takes_is_written() -> None:
    plain = rx.optimize(block(TensorProto.FLOAT), target="plain", runtime="opencv")
    assert plain.report.target == "plain"
    gelu = _with_operator("com.microsoft.QuickGelu")
    assert rx.optimize(gelu, runtime="onnxruntime").report.fused
    ten = block(TensorProto.FLOAT, ir_version=10)  # lowered as far as the element types allow
    versions = {v: rx.optimize(ten, runtime=f"onnxruntime@{v}").model.ir_version
                for v in ("1.17", "1.18")}  # fmt: skip
    assert versions == {"1.17": 9, "1.18": 10}


def test_the_report_names_who_runs_the_file() -> None:
    model = block(TensorProto.FLOAT)
    runs = {entry.runtime: entry for entry in rx.optimize(model).report.runs_in}
    assert runs.keys() == by_name().keys()
    assert (runs["onnxruntime"].since, runs["onnxruntime"].reason) == ("1.15", "")
    assert FUNCTIONS in runs["openvino"].reason
    assert runs["tensorrt"].evidence == "read"
    assert all(not entry.reason for entry in rx.inspect(model).runs_in)
    raised = {e.runtime: e for e in rx.optimize(model, target="onnx").report.runs_in}
    assert raised["onnxruntime"].since == "1.23"
    assert raised["iree"].reason.startswith("it was not seen to run RMSNormalization (node ")


def test_a_newer_file_is_not_said_to_run_in_older_versions() -> None:
    model = ir.from_proto(block(TensorProto.FLOAT, opset=22))
    assert {e.runtime: e.since for e in runs_in(model)}["onnxruntime"] == "1.22"


def test_what_is_not_known_is_said_and_not_refused() -> None:
    gelu = _with_operator("com.microsoft.QuickGelu")
    (note,) = [n for n in rx.optimize(gelu, runtime="tract").report.notes if "for tract" in n]
    assert "not known whether it has com.microsoft.QuickGelu" in note
    runs = {entry.runtime: entry for entry in rx.optimize(gelu).report.runs_in}
    assert (runs["onnxruntime"].reason, runs["onnxruntime"].unknown) == ("", "")
    assert runs["tensorrt-rtx"].reason.startswith("it has no operator com.microsoft.QuickGelu")
    plain = {entry.runtime: entry for entry in rx.inspect(block(TensorProto.FLOAT)).runs_in}
    assert plain["openvino"].unknown == ""
    assert plain["tensorrt"].unknown == "its operators other than norms were not tried"


def test_a_row_has_an_operator_if_all_its_versions_have() -> None:
    assert has_operator(consumer("onnxruntime@1.18"), "", "MatMul") is True
    assert has_operator(consumer("onnxruntime@1.18"), "", "DeformConv") is False
    assert has_operator(consumer("onnxruntime@1.15"), "com.microsoft", "QuickGelu") is None
    assert has_operator(consumer("onnxruntime"), "ai.onnx.ml", "Scaler") is None
    assert has_operator(consumer("mnn"), "", "MatMul") is None


def test_the_operators_that_models_are_made_of_are_known() -> None:
    """In every runtime whose operators were tried; those of a transformer are in all of them."""
    usual = ("Add", "Cast", "Concat", "Conv", "Div", "Gather", "Gemm", "MatMul", "Mul", "Pow",
             "ReduceMean", "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze",
             "Sub", "Tanh", "Transpose", "Unsqueeze", "Where")  # fmt: skip
    tried = [row for row in CONSUMERS if not unknown(row, ())]
    assert len({row.name for row in tried}) > 4
    for row in tried:
        if row.evidence == "run":
            assert [op for op in usual if has_operator(row, "", op) is not True] == [], row.name

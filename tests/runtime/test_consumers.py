"""``--for``: what is chosen for a runtime, what is refused, and who is said to run a file."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.rewrite.runs import Needs, runs_in
from rmsnorm_export.runtime.consumers import BY_NAME, CONSUMERS, FUNCTIONS, RunsIn, consumer
from rmsnorm_export.runtime.session import open_session, run_session
from tests.tools.runtimes.models import block
from tests.tools.tables import table

FLOAT = TensorProto.FLOAT
NO_TEST = "none of ONNX's own tests of"


def _ending_with(kind: str) -> onnx.ModelProto:
    """The block, its output by an operator of one input."""
    model, (domain, _, name) = block(FLOAT), kind.rpartition(".")
    last = model.graph.node[-1]
    last.CopyFrom(helper.make_node(name, last.input[:1], ["output"], name="odd", domain=domain))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


GELU = _ending_with("com.microsoft.QuickGelu")


def _runtimes(verdicts: tuple[RunsIn, ...]) -> dict[str, RunsIn]:
    return {verdict.runtime: verdict for verdict in verdicts}


@pytest.mark.parametrize(
    ("text", "since"),
    [("onnxruntime", "1.32"), ("ONNXRuntime@1.17.3", "1.17"), ("onnxruntime@1.21", "1.20.1"),
     ("onnxruntime@1.20", "1.20"), ("onnxruntime@1.31.1", "1.31"), ("openvino@2026.4", "2026.4")],
)  # fmt: skip
def test_a_version_has_the_row_that_holds_from_it_on(text: str, since: str) -> None:
    assert consumer(text).since == since


def test_functions_are_inlined_for_a_runtime_without_them() -> None:
    """Others' functions, too."""
    model = _ending_with("theirs.Negate")
    inner, imports = [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("theirs", "Negate", ["a"], ["b"], inner, imports))
    result = rx.optimize(model, runtime="openvino")
    assert not result.model.functions
    assert {node.domain for node in result.model.graph} == {""}
    assert "1 function inlined" in result.report.notes[-1]
    assert len(rx.optimize(model, runtime="onnxruntime").model.functions) == 1


def _with_int4() -> onnx.ModelProto:
    model = block(FLOAT, ir_version=10)
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [2], [1, 2]))
    return model


@pytest.mark.parametrize(
    ("model", "runtime", "options", "reason"),
    [
        (_with_int4(), "onnxruntime@1.17", {}, "format version 10; it loads 9 at most"),
        (block(FLOAT, opset=23), "onnxruntime@1.22", {"target": "onnx"}, "RMSNormalization"),
        (block(FLOAT), "opencv", {"target": "ort"}, "SimplifiedLayerNorm"),
        (_ending_with("MeanVarianceNormalization"), "opencv", {}, NO_TEST),
        (_ending_with("Det"), "openvino", {}, NO_TEST),
        (_ending_with("com.microsoft.LinearAttention"), "onnxruntime@1.20", {}, "has no operator"),
        (_ending_with("com.microsoft.NoSuchThing"), "onnxruntime", {}, "has no operator"),
    ],
)
def test_a_model_that_cannot_run_says_why(
    model: onnx.ModelProto, runtime: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(rx.InputError, match="cannot run this model") as caught:
        rx.optimize(model, runtime=runtime, **options)
    assert reason in caught.value.found


@pytest.mark.parametrize(("version", "expected"), [("1.17", 9), ("1.18", 10)])
def test_the_format_is_lowered_as_far_as_the_types_allow(version: str, expected: int) -> None:
    ten = block(FLOAT, ir_version=10)
    assert rx.optimize(ten, runtime=f"onnxruntime@{version}").model.ir_version == expected


def test_the_report_names_who_runs_the_file() -> None:
    model = block(FLOAT)
    runs = _runtimes(rx.optimize(model).report.runs_in)
    assert runs.keys() == BY_NAME.keys()
    assert (runs["onnxruntime"].since, runs["onnxruntime"].reason) == ("1.15", "")
    assert FUNCTIONS in runs["openvino"].reason
    assert runs["tensorrt"].evidence == "read"
    assert all(not entry.reason for entry in rx.inspect(model).runs_in)
    raised = _runtimes(rx.optimize(model, target="onnx").report.runs_in)
    assert raised["onnxruntime"].since == "1.23"
    assert raised["iree"].reason.startswith("it was not seen to run RMSNormalization (node ")
    newer = _runtimes(runs_in(ir.from_proto(block(FLOAT, opset=22))))
    assert newer["onnxruntime"].since == "1.22"


@pytest.mark.parametrize(("dtype", "since"), [("float16", "1.20.1"), ("float", "1.16")])
def test_the_sum_of_a_float16_norm_is_for_versions_that_keep_its_scale(
    dtype: str, since: str
) -> None:
    """1.20.0 loses it: of a node of the file, too."""
    rows = f"{dtype}[2,3,8]"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g ({rows} x, {rows} r,'
        f" {dtype}[8] w) => ({rows} y) {{ y = com.microsoft.SkipSimplifiedLayerNormalization"
        " (x, r, w) }"
    )
    assert _runtimes(rx.inspect(model, target="ort").runs_in)["onnxruntime"].since == since
    nodes = rx.optimize(model, runtime="onnxruntime@1.20.0").model.graph
    assert ("Cast" in {node.op_type for node in nodes}) == (dtype == "float16")


UNKNOWN: dict[str, dict[str, bool]] = table(__file__)


@pytest.mark.parametrize(
    ("operator", "runtime", "unknown"),
    [(operator, *one) for operator, runtimes in UNKNOWN.items() for one in runtimes.items()],
)
def test_what_is_not_known_is_said_and_not_refused(
    operator: str, runtime: str, unknown: bool
) -> None:
    """An operator of another domain may be that of a plugin or a library, and stays as it is."""
    result = rx.optimize(_ending_with(operator), runtime=runtime)
    domain, _, name = operator.rpartition(".")
    assert (domain, name) in {(node.domain, node.op_type) for node in result.model.graph}
    (note,) = [note for note in result.report.notes if "gets the target" in note]
    said = "not known whether it has " in note and operator in note
    assert (said, "what is not known is taken as it is" in note) == (unknown, "not" in note)
    verdict = _runtimes(result.report.runs_in)[runtime.partition("@")[0]]
    if "@" not in runtime:
        assert (verdict.reason, operator in verdict.unknown) == ("", unknown)


def test_a_runtime_whose_other_operators_were_not_tried_says_so() -> None:
    assert _runtimes(rx.optimize(GELU).report.runs_in)["onnxruntime"].unknown == ""
    plain = _runtimes(rx.inspect(block(FLOAT)).runs_in)
    assert plain["openvino"].unknown == ""
    assert plain["tensorrt"].unknown == "its operators other than norms were not tried"


@pytest.mark.parametrize(
    ("runtime", "domain", "operator", "expected"),
    [("onnxruntime@1.18", "", "MatMul", True), ("onnxruntime@1.18", "", "DeformConv", False),
     ("onnxruntime@1.15", "com.microsoft", "QuickGelu", None),
     ("onnxruntime", "ai.onnx.ml", "Scaler", None), ("mnn", "", "MatMul", None)],
)  # fmt: skip
def test_a_row_has_an_operator_if_all_its_versions_have(
    runtime: str, domain: str, operator: str, expected: bool | None
) -> None:
    assert consumer(runtime).has_operator(domain, operator) is expected


def test_the_operators_of_transformers_are_known_where_operators_were_tried() -> None:
    usual = ("Add", "Cast", "Gather", "MatMul", "Mul", "Pow", "ReduceMean", "Softmax", "Sqrt")
    tried = [row for row in CONSUMERS if row.tried]
    assert len({row.name for row in tried}) > 4
    for row in tried:
        if row.evidence == "run":
            assert [op for op in usual if row.has_operator("", op) is not True] == [], row.name


@pytest.mark.parametrize(("shape", "runs"), [("8", False), ("1, 8", True)])
def test_a_row_without_other_axes_is_not_for_tvm(shape: str, runs: bool) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> main (float[{shape}] x, float[8] w) '
        f"=> (float[{shape}] y) {{ y = RMSNormalization (x, w) }}"
    )
    reason = Needs.of(ir.from_proto(model)).refused_by(consumer("tvm"))
    assert (reason == "") == runs
    assert runs or "other axes" in reason


@pytest.mark.parametrize("opset", [21, 22])
@pytest.mark.parametrize("place", ["main", "branch", "function"])
def test_a_runtime_may_lack_a_version_of_an_operator(place: str, opset: int) -> None:
    roi = "RoiAlign <output_height = 2, output_width = 2> (x, r, b)"
    imports, shape = f'opset_import: ["" : {opset}, "my" : 1]', "float[1,2,8,8]"
    bodies = {
        "main": f"y = {roi}",
        "branch": f"y = If (c) <then_branch = t () => (float[2,2,2,2] u) {{ u = {roi} }},"
        f" else_branch = e () => (float[2,2,2,2] v) {{ w = {roi}\n v = Neg (w) }}>",
        "function": "y = my.F (x, r, b)",
    }
    function = f'<domain: "my", {imports}> F (x, r, b) => (y) {{ y = {roi} }}'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, {imports}> g ({shape} x, float[2,4] r, int64[2] b, bool c) =>"
        f" (float[2,2,2,2] y) {{ {bodies[place]} }} {function if place == 'function' else ''}"
    )
    with contextlib.nullcontext() if opset == 21 else pytest.raises(rx.Error, match="load"):
        open_session(model.SerializeToString())
    reason = Needs.of(ir.from_proto(model)).refused_by(consumer("onnxruntime@1.31"))
    expected = "it has no kernel for RoiAlign of opset 22 (node RoiAlign)"
    assert reason == ("" if opset == 21 else expected)


BFLOAT16 = """<ir_version: 8, opset_import: ["" : 18]>
g (float[B, 8] x) => (float[B, 8] y) {
  a = Cast <to = 16> (x)
  w = Cast <to = 16> (x)
  b = OPERATOR
  y = Cast <to = 1> (b)
}"""


@pytest.mark.parametrize(
    ("operator", "said"),
    [("Mul (a, w)", "Mul"), ("Sqrt (a)", "Sqrt"), ("Concat <axis = 0> (a, w)", ""),
     ("Identity (a)", "")],
)  # fmt: skip
def test_bfloat16_on_the_cpu_is_of_few_operators(operator: str, said: str) -> None:
    """GPUs may run it: it is said, and not refused."""
    model = onnx.parser.parse_model(BFLOAT16.replace("OPERATOR", operator))
    for name in ("a", "w", "b"):
        model.graph.value_info.append(
            helper.make_tensor_value_info(name, TensorProto.BFLOAT16, None)
        )
    with contextlib.ExitStack() as stack:
        if said:
            stack.enter_context(pytest.raises(Exception, match="NOT_IMPLEMENTED"))
        open_session(model.SerializeToString())
    result = rx.optimize(model, runtime="onnxruntime")
    expected = f"its CPU provider has no {said} of bfloat16 (node {said})"
    assert any(expected in note for note in result.report.notes) == bool(said)
    verdict = _runtimes(result.report.runs_in)["onnxruntime"]
    assert (verdict.reason, expected in verdict.unknown) == ("", bool(said))


@pytest.mark.parametrize(("row", "vector", "runs"), [(1, 2, False), (1, 1, True), (2, 2, True)])
def test_a_vector_behind_rows_of_one_number_is_not_for_onnxruntime(
    row: int, vector: int, runs: bool
) -> None:
    """It is taken for the scale of the norm in the source, and not in what is written for it."""
    values = ", ".join(["0.5"] * vector)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
      g (float[3, {row}] x) => (float[3, {max(row, vector)}] y)
      <float two = {{2}}, float epsilon = {{1e-5}}, float[{vector}] w = {{{values}}}> {{
        p = Pow (x, two)
        m = ReduceMean <axes = [-1]> (p)
        e = Add (m, epsilon)
        r = Sqrt (e)
        n = Div (x, r)
        y = Mul (w, n)
      }}"""
    model = onnx.parser.parse_model(text)
    result = rx.optimize(model)
    feeds = {"x": np.ones((3, row), np.float32)}
    source, written = model.SerializeToString(), result.to_bytes()
    run_session(open_session(written, optimize=True), feeds)
    with contextlib.nullcontext() if runs else pytest.raises(Exception, match="broadcastable"):
        run_session(open_session(source, optimize=True), feeds)
    assert not _runtimes(result.report.runs_in)["onnxruntime"].reason
    reason = _runtimes(runs_in(ir.from_proto(model)))["onnxruntime"].reason
    assert ("rows of one number" in reason) != runs


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        ("tensorrt@7.2", "version", "8.6 to 11.4"),
        ("openvino@2023", "version", "2024.6 to 2026.4.1"),
        ("onnxruntime@banana", "version", "1.15 to"),
        ("opnvino", "name", "did you mean 'openvino'? "),
        ("directml", "name", "--target plain --opset 20; not tried, but the documentation"),
        ("onnxruntime-migraphx@2", "name", "--target plain --opset 19; not tried"),
        ("rknn", "name", "--target plain --opset 15; not tried, but reports"),
        *((name, "name", "--target plain; not tried") for name in ("qnn", "coreml", "webnn")),
    ],
)
def test_a_runtime_without_a_row_has_a_way_out(text: str, what: str, words: str) -> None:
    with pytest.raises(rx.UsageError, match=f"no such {what}") as error:
        consumer(text)
    assert words in error.value.fix
    assert "not tried" in words or "--target plain --opset N" in error.value.fix
    assert ("did you mean" in error.value.fix) is ("did" in words)

"""A raised or lowered model computes what it did, or is left at its opset and the node is named."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from old_forms import old_models, versions
from onnx.version_converter import convert_version

import rmsnorm_export as rx
from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.rewrite import converted
from rmsnorm_export.runtime.session import load_session, run_session
from tests.tools.tables import table

HARMLESS = converted._HARMLESS
SAMPLE = [*sorted(HARMLESS)[::16], "ReduceMean", "Softmax"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
NEWEST_IR = 10


def _run(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    return list(run_session(load_session(model, threads=1), feeds).values())


def _same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(
        a.shape == b.shape and np.allclose(a, b, equal_nan=True, **TOLERANCE)
        if isinstance(a, np.ndarray) and a.dtype.kind in "biuf"
        else repr(a) == repr(b)
        for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.thorough])
        for name in HARMLESS
    ],
)
def test_a_change_that_is_not_run_is_harmless(operator: str) -> None:
    """In ONNX Runtime, which computes the older operators by their own rules."""
    spans = [[v for v in versions(operator) if a <= v <= b] for a, b in HARMLESS[operator]]
    compared = set()
    for name, opset, model, feeds in old_models(operator):
        since = max(version for version in versions(operator) if version <= opset)
        newer = [v for span in spans if since in span for v in span if v > since]
        try:
            expected = _run(model.SerializeToString(), feeds)
        except Error:  # what the runtime does not run shows nothing
            continue
        for version in newer:
            after = convert_version(model, version)
            after.ir_version = NEWEST_IR
            assert _same(expected, _run(after.SerializeToString(), feeds)), (name, version)
            compared.add((since, version))
    assert compared >= {pair for span in spans for pair in itertools.pairwise(span)}


NORM = """s = Mul (x, x)
  m = ReduceMean <axes = [3]> (s)
  q = Add (m, e)
  d = Sqrt (q)
  t = Div (x, d)
"""
BODIES: dict[str, dict[str, Any]] = table(__file__)
BODIES["constants that it adds to a graph and a branch"] = {
    "opset": 11,
    "raised": True,
    "nodes": "p0 = ReduceSum <axes = [1]> (t)\n "
    + "\n ".join(f"p{k + 1} = ReduceSum <axes = [2]> (p{k})" for k in range(9))
    + " c = Constant <value = bool {1}> ()\n y = If (c) <then_branch = a () => (float u) {"
    " u0 = Identity (p9)\n "
    + "\n ".join(f"u{k + 1} = ReduceSum <axes = [0]> (u{k})" for k in range(20))
    + " u = Neg (u20) }, else_branch = b () => (float v) { v = Neg (p9) }>",
}
STORED = (
    "float e = {0.5}, float[4] sizes = {1, 1, 2, 2}, float[2] two = {1, 2},"
    " float[4] four = {1, -2, 3, 0.5}, float[4] squares = {1, 2, 3, 0.5},"
    " float[2, 4] boxes = {0, 0, 3, 3, 1, 1, 5, 3}, int64[2] places = {0, 1}"
)


def _model(opset: int, body: str, *, size: str = "2,4,6,8") -> bytes:
    norm = NORM if opset < 18 else NORM.replace("<axes = [3]> (s)", "(s, axis)")
    more = ", int64[1] axis = {3}" if opset >= 18 else ""
    extra = ", int64[N] shape" if "(t, shape)" in body else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{size}] x{extra}) => (float y)'
        f" <{STORED}{more}> {{ {norm} {body} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model.SerializeToString()


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("target", ["portable", "onnx"])
def test_a_raised_model_computes_what_it_did_or_is_not_raised(name: str, target: Any) -> None:
    opset, body, may_be_raised = (BODIES[name][key] for key in ("opset", "nodes", "raised"))
    source = _model(opset, body)
    needed = 13 if target == "portable" else 23
    if opset >= needed or (target == "portable" and name == "RoiAlign"):
        may_be_raised = True
    result, plan = rx.optimize(source, target=target), rx.inspect(source, target=target)
    report = result.report
    for one in (report, plan):
        assert (len(one.fused), len(one.refused)) == (int(may_be_raised), int(not may_be_raised))
        assert (one.opset_before, one.opset_after) == (report.opset_before, report.opset_after)
    assert report.opset_after == (max(opset, needed) if may_be_raised else opset)
    assert report.refused == plan.refused
    if not may_be_raised:
        assert report.refused[0].reason == "opset"
        assert name.split()[0] in report.refused[0].found or "Hardmax" in body
        assert f"to opset {needed}: " in report.refused[0].found
        with pytest.raises(InputError, match="cannot be raised to another opset"):
            rx.optimize(source, target=target, opset=23)
        return
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 6, 8)).astype(np.float32)}
    assert _same(_run(source, feeds), _run(result.to_bytes(), feeds))


def test_weights_need_not_be_inputs_in_an_old_format() -> None:
    """Few exporters kept that rule of the format, and ONNX Runtime does not ask for it."""
    source = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 8]> g (float[3, 8] x) => (float[3, 8] t)'
        f" <float e = {{0.5}}> {{ {NORM.replace('[3]', '[1]')} }}"
    )
    result = rx.optimize(source)
    assert (len(result.report.fused), result.model.ir_version) == (1, 8)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}
    assert _same(_run(source.SerializeToString(), feeds), _run(result.to_bytes(), feeds))


@pytest.mark.parametrize(("opset", "options"), [(11, {}), (18, {"opset": 13}), (18, {})])
def test_how_values_are_quantized_is_said_as_before(opset: int, options: dict[str, Any]) -> None:
    """By tensors that nothing else may read."""
    model = onnx.ModelProto.FromString(_model(opset, "y = Neg (t)"))
    for name in ("x", "t", "y"):
        annotation = model.graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="four")
    result = onnx.ModelProto.FromString(rx.optimize(model, **options).to_bytes())
    before, after = (
        sorted(one.SerializeToString() for one in m.graph.quantization_annotation)
        for m in (model, result)
    )
    assert before == after
    assert "four" in {one.name for one in result.graph.initializer}


@pytest.mark.parametrize("size", ["B,C,H,8", "1,64,512,512"])
def test_sizes_that_are_open_or_large_are_small_when_nodes_are_run(size: str) -> None:
    for axis, fused in ((3, 1), (1, 0)):
        source = _model(11, f"y = Hardmax <axis = {axis}> (t)", size=size)
        assert len(rx.optimize(source).report.fused) == fused


def test_of_nodes_that_are_alike_one_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    original = converted.run_reference
    monkeypatch.setattr(
        converted, "run_reference", lambda *a, **k: runs.append(1) or original(*a, **k)
    )
    chain = "\n".join(f"h{k + 1} = Hardmax <axis = 3> (h{k})" for k in range(50))
    body = f"h0 = Neg (t)\n {chain}\n h51 = Hardmax <axis = -1> (h50)\n y = Neg (h51)"
    assert len(rx.optimize(_model(11, body)).report.fused) == 1
    assert len(runs) == 2
    assert len(rx.optimize(_model(13, body)).report.fused) == 1
    assert len(runs) == 2


def test_without_onnxruntime_only_known_changes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert len(rx.optimize(_model(11, "y = Softmax (t)")).report.fused) == 1
    (refused,) = rx.optimize(_model(11, "y = Hardmax <axis = 3> (t)")).report.refused
    assert "ONNX Runtime is not here to run it" in refused.found
    assert "pip install" in refused.found


def test_a_proof_loads_the_result_where_it_is_said_to_run() -> None:
    loading = rx.optimize(_model(11, "y = Neg (t)"), prove=True, target="ort").report.loading
    assert loading is not None
    assert (loading.problem, loading.not_loaded) == ("", "")
    assert loading.runtime.startswith("onnxruntime ")
    # Of this type, which the table does not know of, it has no kernel.
    shift = 'BitShift <direction = "LEFT"> (i, i)'
    body = f"i = Cast <to = 4> (x)\n j = {shift}\n k = Cast <to = 1> (j)\n y = Mul (t, k)"
    report = rx.optimize(_model(14, body), prove=True).report
    assert report.loading is not None
    assert "BitShift" in report.loading.problem
    assert "does not load in onnxruntime" in str(report.proof_error)
    assert rx.optimize(_model(14, body)).report.loading is None
    elsewhere = rx.optimize(_model(14, "y = Neg (t)"), prove=True, runtime="openvino").report
    assert elsewhere.loading is not None
    assert elsewhere.loading.not_loaded.startswith("openvino ")
    assert elsewhere.proof_error is None

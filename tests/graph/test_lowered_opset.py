"""A model of a newer opset than it should have: lowered, with the same numbers, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.opset import convert_opset
from rmsnorm_export.rewrite.converted import check_conversion
from rmsnorm_export.runtime.session import load_session
from tests.rewrite.old_forms import onnx_tests
from tests.sample import crossed
from tests.tools.tables import table

WEIGHT = "<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8.5}>"
NORM = """<ir_version: 10, opset_import: ["" : OPSET]>
g (T[B, S, 8] x, T[8] w) => (T[B, S, 8] y) {
  n = RMSNormalization <axis = -1, epsilon = 0.00001> (x, w)
  BODY
}"""
BODIES = {
    "nothing else": "y = Identity (n)",
    "a size": "s = Shape (n)\n o = ConstantOfShape <value = T_one> (s)\n y = Mul (n, o)",
    "a branch": "c = Constant <value_int = 1> ()\n b = Cast <to = 9> (c)\n y = If (b)"
    " <then_branch = t () => (T[B, S, 8] u) { u = RMSNormalization (n, w) }, else_branch ="
    " f () => (T[B, S, 8] v) { v = Neg (n) }>",
}


def _run(model: bytes, dtype: Any, rows: int = 3) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((2, rows, 8))
    feeds = {"x": x.astype(dtype), "w": np.arange(8).astype(dtype)}
    return np.asarray(load_session(model, threads=1).run(None, feeds)[0])


@crossed(
    2,
    body=[*BODIES],
    dtype=["float", "float16"],
    place=[
        ({"runtime": "onnxruntime@1.22"}, 22), ({"runtime": "onnxruntime@1.15"}, 18),
        ({"opset": 18}, 18), ({"opset": 17, "target": "ort"}, 17), ({"opset": 14}, 14),
        ({"opset": 13, "target": "plain"}, 13), ({"opset": 24, "target": "onnx"}, 24),
        ({"runtime": "onnxruntime@1.23"}, 23),
    ],
)  # fmt: skip
def test_a_norm_of_a_newer_opset_is_one_of_the_older(
    place: tuple[dict[str, Any], int], dtype: str, body: str
) -> None:
    options, expected = place
    if body == "a branch" and expected < 16:
        body = "nothing else"  # the converter has no older If
    one = "float[1] {1}" if dtype == "float" else "float16[1] {15360}"
    text = NORM.replace("BODY", BODIES[body]).replace("T_one", one).replace("OPSET", "23")
    source = onnx.parser.parse_model(text.replace("T[", f"{dtype}[")).SerializeToString()
    result = rx.optimize(source, **options)
    report = result.report
    assert (report.opset_before, report.opset_after) == (23, expected)
    assert result.model.opset_imports[""] == expected
    assert report.unfused == ()
    assert len(report.fused) + len(report.kept) == (2 if body == "a branch" else 1)
    said = f"from opset 23 to {expected} by onnx.version_converter"
    assert any(said in note for note in report.notes) == (expected != 23)
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    # ONNX Runtime's kernel of RMSNormalization multiplies before it rounds, its definition after: a
    # step of float16.
    bound = 2.0**-20 if dtype == "float" else 2.0**-10
    a, b = _run(source, kind).astype(np.float64), _run(result.to_bytes(), kind).astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("body", "opset", "found"),
    [
        ("i = Cast <to = 6> (n)\n j = BitwiseNot (i)\n y = Cast <to = 1> (j)", 17, "BitwiseNot"),
        ("s = Shape <start = 1> (n)\n t = ConstantOfShape (s)\n y = Add (n, t)", 14, "start"),
        ("y = Reshape <allowzero = 1> (n, z)", 13, "allowzero"),
        ("c = Cast <to = 16> (n)\n d = Cos (c)\n y = Cast <to = 1> (d)", 18, "Cos"),
    ],
)
def test_what_prevents_it_is_named(body: str, opset: int, found: str) -> None:
    text = NORM.replace("BODY", body).replace("OPSET", "24").replace("T[", "float[")
    source = onnx.parser.parse_model(text.replace("y) {", "y) <int64[1] z = {0}> {"))
    with pytest.raises(InputError, match="cannot be lowered to another opset") as caught:
        rx.optimize(source, opset=opset)
    if opset == 18:
        with pytest.raises(InputError, match="cannot be lowered to another opset"):
            rx.optimize(source, runtime="onnxruntime@1.15")
    assert found in caught.value.found
    assert f"to opset {opset}" in caught.value.found


LACKING: dict[str, Any] = table(__file__)


@crossed(2, name=[*LACKING], dtype=["float", "float16"])
def test_what_an_older_opset_lacks_is_written_out(name: str, dtype: str) -> None:
    """By ONNX's own functions, in main graphs and bodies."""
    body, opset = LACKING[name]["nodes"], LACKING[name]["opset"]
    text = NORM.replace("BODY", body).replace("OPSET", "24").replace("[B, S, 8] x", "[B, 4, 8] x")
    stored = "int64[1] z = {0}, int64[1] m = {2}, int64[1] o = {4}, int64[1] e = {1}"
    text = text.replace("y) {", f"y) <{stored}> {{").replace("[B, S, 8] y", "[B, 4, 8] y")
    text = text.replace("S, ", "4, ").replace("float[", f"{dtype}[").replace("T[", f"{dtype}[")
    source = onnx.parser.parse_model(text).SerializeToString()
    result = rx.optimize(source, opset=opset)
    assert (result.report.opset_after, len(result.report.fused)) == (opset, 1)
    assert name.split()[0] not in {node.op_type for node in result.model.graph.all_nodes()}
    kind, bound = (np.float32, 2.0**-18) if dtype == "float" else (np.float16, 2.0**-8)
    before, after = (np.float64(_run(one, kind, 4)) for one in (source, result.to_bytes()))
    np.testing.assert_allclose(after, before, rtol=bound, atol=bound * np.abs(before).max())


def test_a_body_depends_on_types_that_onnx_does_not_infer() -> None:
    text = NORM.replace('["" : OPSET]', '["" : 24, "com.microsoft" : 1]').replace("T[", "float[")
    body = "q = com.microsoft.QuickGelu <alpha = 1.0> (n)\n y = Gelu (q)"
    result = rx.optimize(onnx.parser.parse_model(text.replace("BODY", body)), opset=18)
    assert len(result.report.fused) == 1
    assert not {"Gelu"} & {node.op_type for node in result.model.graph}


def test_an_opset_below_that_of_the_target_is_no_option() -> None:
    source = onnx.parser.parse_model(
        NORM.replace("BODY", "y = Neg (n)").replace("OPSET", "23").replace("T[", "float[")
    )
    with pytest.raises(UsageError, match="too low for the target onnx"):
        rx.optimize(source, opset=22, target="onnx")


@pytest.mark.thorough
def test_no_operator_of_onnx_is_another_after_it_was_lowered() -> None:
    """ONNX's own tests, in ONNX Runtime, which computes the older operators by their rules."""
    lowered = 0
    for name, model, inputs in onnx_tests():
        feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=False)}
        before = max((e.version for e in model.opset_import if not e.domain), default=0)
        try:
            expected = load_session(model.SerializeToString(), threads=1).run(None, feeds)
        except Exception:  # what the runtime does not run shows nothing
            continue
        for opset in (opset for opset in (22, 20, 18, 17, 15, 13) if opset < before):
            try:
                source, result = convert_opset(ir.from_proto(model), opset)
                check_conversion(source, result)
            except InputError:
                break
            got = load_session(ir.to_proto(result).SerializeToString(), threads=1).run(None, feeds)
            lowered += 1
            for a, b in zip(expected, got, strict=True):
                if isinstance(a, np.ndarray) and a.dtype.kind in "biuf":
                    # A function rounds where the operator does not.
                    half = a.dtype == np.float16 and len(result.graph) > len(source.graph)
                    rtol = 2.0**-9 if half else 1e-4
                    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5, err_msg=name)
                else:
                    assert repr(a) == repr(b), name
    assert lowered > 2000

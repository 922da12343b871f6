"""What makes int8 or FP8 codes of a norm is taken into its node where that is asked for."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.op import body

NORM = """h = Add(x, r)
{cast}sq = Pow(c, two)
m = ReduceMean<keepdims = 1>(sq, axes)
e = Add(m, eps)
s = Sqrt(e)
n = Div(c, s)
{back}y = Mul(t, w)
"""
STATIC = "q = QuantizeLinear(y, qs, qz)"
ROWS = """{wide}a = Abs(f)
top = ReduceMax<keepdims = 1>(a, axes)
rs = Div(top, largest)
d = Div(f, rs)
{round}k = Clip(i, smallest, largest)
q = Cast<to = {code}>(k)"""
CODES = {
    "int8": (TensorProto.INT8, "int8", 127),
    "fp8": (TensorProto.FLOAT8E4M3FN, "float8e4m3fn", 448),
}
HOW = ("int8", "fp8", "int8_per_row", "fp8_per_row")


def model(dtype: str, how: str) -> onnx.ModelProto:
    """A residual norm and what makes codes of it."""
    half = dtype == "float16"
    code, name, largest = CODES[how.partition("_")[0]]
    rows = how.endswith("row")
    text = NORM.format(cast="c = Cast<to = 1>(h)\n" if half else "",
                       back="t = Cast<to = 10>(n)\n" if half else "")  # fmt: skip
    text += STATIC if not rows else ROWS.format(
        wide="f = Cast<to = 1>(y)\n" if half else "",
        round="i = Round(d)\n" if how[0] == "i" else "", code=code)  # fmt: skip
    if not half:
        text = re.sub(r"\bc\b", "h", re.sub(r"\bt\b", "n", re.sub(r"\bf\b", "y", text)))
    text = text if how[0] == "i" else re.sub(r"\bi\b", "d", text)
    outputs = f"{name}[B,S,64] q, {dtype}[B,S,64] h" + (", float[B,S,1] rs" if rows else "")
    constants = f", float largest = {{{largest}}}, float smallest = {{-{largest}}}" * rows
    text = (
        '<ir_version: 9, opset_import: ["" : 19]>\n'
        f"g ({dtype}[B,S,64] x, {dtype}[B,S,64] r) => ({outputs})\n"
        f"<float two = {{2}}, float eps = {{0.00001}}, int64[1] axes = {{-1}}{constants}>\n"
        f"{{ {text}\n }}"
    )
    made = onnx.parser.parse_model(text)
    stored = np.float16 if half else np.float32
    weights = {"w": np.linspace(0.5, 1.5, 64).astype(stored)}
    if not rows:
        weights["qs"] = np.array(0.03, stored)
        made.graph.initializer.append(helper.make_tensor("qz", code, [], b"\0", raw=True))
    made.graph.initializer.extend(numpy_helper.from_array(a, k) for k, a in weights.items())
    onnx.checker.check_model(made)
    return made


def run(source: bytes, outputs: list[str], dtype: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source, options)
    rng = np.random.default_rng(1)
    stored = np.float16 if dtype == "float16" else np.float32
    feeds = {name: rng.standard_normal((2, 3, 64)).astype(stored) for name in ("x", "r")}
    return [np.asarray(result) for result in session.run(outputs, feeds)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_codes_are_those_of_the_source(dtype: str, how: str) -> None:
    source = model(dtype, how)
    result = rx.optimize(source, fold_quantize=True, prove=True)
    counts = "1 of 1 RMSNorm, 1 of 1 residual, 1 of 1 quantized output are one node"
    assert result.report.headline().startswith(counts)
    (site,) = result.report.fused
    assert (site.op, site.attributes["quantize"]) == (f"QuantizedSkipRMSNorm_{how}", how)
    assert any("plugin_namespace" in node.attributes for node in result.model.graph)
    assert site.proof is not None
    assert site.proof.passed
    # One half rounding fewer, or rows of zeros that the source divides by 0.
    exact = dtype == "float" and not how.endswith("row")
    assert site.numerics == ("exact" if exact else "reordered")
    content = result.to_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    if how.startswith("fp8"):  # which NumPy does not have
        run(content, ["h"], dtype)
        return
    outputs = ["q", "h", *(["rs"] if how.endswith("row") else [])]
    both = run(source.SerializeToString(), outputs, dtype), run(content, outputs, dtype)
    for before, after in zip(*both, strict=True):
        assert before.dtype == after.dtype
        steps = np.abs(before.astype(np.float64) - after.astype(np.float64))
        assert steps.max() <= (1 if before.dtype == np.int8 and dtype == "float16" else 0)


@pytest.mark.parametrize(
    ("how", "wrong"), [("int8_per_row", (3, 126.0)), ("int8", (TensorProto.UINT8, 127.0))]
)
def test_a_proof_finds_other_codes(
    how: str, wrong: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "CODE_TYPES", {"int8": wrong})
    (unproved,) = rx.optimize(model("float", how), fold_quantize=True, prove=True).report.unproved
    assert (unproved.reason, unproved.found[:9]) == ("proof-failed", "quantized")


def test_a_row_of_zeros_has_the_scale_one() -> None:
    content = rx.optimize(model("float", "int8_per_row"), fold_quantize=True).to_bytes()
    session = onnxruntime.InferenceSession(content)
    zeros = np.zeros((1, 1, 64), np.float32)
    codes, scale = session.run(["q", "rs"], {"x": zeros, "r": zeros})
    assert not np.any(codes)
    assert np.array_equal(scale, np.ones((1, 1, 1), np.float32))

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
from rmsnorm_export.show import to_text

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


def model(
    dtype: str, how: str, *change: tuple[str, str],
    zero: int = 0, scale: object = 0.03, **more: float,
) -> onnx.ModelProto:  # fmt: skip
    """A residual norm and what makes codes of it; ``change``: (regular expression, text);
    ``more``: scales by name."""
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
    for wanted, new in change:
        text, count = re.subn(wanted, new, text)
        assert count
    made = onnx.parser.parse_model(text)
    stored = np.float16 if half else np.float32
    weights = {"w": np.linspace(0.5, 1.5, 64).astype(stored)}
    if not rows:
        weights["qs"] = scales = np.array(scale, stored)
        points = bytes([zero]) * scales.size
        made.graph.initializer.append(
            helper.make_tensor("qz", code, scales.shape, points, raw=True)
        )
    weights |= {name: np.array(number, stored) for name, number in more.items()}
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


def test_equal_quantizers_are_one() -> None:
    """As ModelOpt writes them: one for the input of each Linear, with scales of their own."""
    tail = "\nz = QuantizeLinear(y, qs2, qz)\nk = Neg(z) }"
    more = (r"\) => \(int8\[B,S,64\] q", ") => (int8[B,S,64] q, int8[B,S,64] k")
    given = model("float", "int8", (r"\n }", tail), more, qs2=0.03)
    result = rx.optimize(given, fold_quantize=True, prove=True)
    assert [node.op_type for node in result.model.graph] == ["QuantizedSkipRMSNorm_int8", "Neg"]
    assert not result.report.unproved
    assert [value.name for value in result.model.graph.outputs] == ["q", "k", "h"]
    plain = rx.optimize(result.to_bytes(), target="plain").model.graph
    assert [node.op_type for node in plain].count("QuantizeLinear") == 1
    outputs = ["q", "k", "h"]
    files = given.SerializeToString(), result.to_bytes()
    for old, new in zip(*(run(file, outputs, "float") for file in files), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("how", HOW)
def test_a_file_with_codes_is_read_again(how: str) -> None:
    """It stays as it is, is taken apart for others, and written out."""
    folded = rx.optimize(model("float", how), fold_quantize=True).to_bytes()
    again = rx.optimize(folded, prove=True)
    assert again.report.headline().endswith("0 fused, 1 already one node")
    assert not again.report.unproved
    assert again.to_bytes() == folded
    apart = [node.op_type for node in rx.optimize(folded, target="ort").model.graph]
    assert (apart[0], apart[-1]) == ("SkipSimplifiedLayerNormalization", "QuantizeLinear")
    expanded = rx.optimize(folded, target="plain", prove=True)
    assert (expanded.report.unproved, expanded.model.functions) == ((), {})
    (site,) = rx.optimize(expanded.to_bytes(), fold_quantize=True).report.fused
    assert (site.op, site.numerics) == (f"QuantizedSkipRMSNorm_{how}", "exact")
    if how.startswith("int8"):
        (before,) = run(folded, ["q"], "float")
        assert np.array_equal(before, run(expanded.to_bytes(), ["q"], "float")[0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (model("float", "int8", zero=3), "its zero point is not the constant 0"),
        (model("float", "fp8", (r"QuantizeLinear\(", "QuantizeLinear<saturate = 0>(")), "saturate"),
        (model("float", "int8", (r"int8\[B,S,64\] q", "uint8[B,S,64] q"), (", qz", "")),
         "neither int8"),
        (model("float", "int8", (r"Linear\(", "Linear<axis = 2>("), scale=[0.1] * 64), "no single"),
        (model("float", "int8", (r" q,", " q, float[B,S,64] y,")), "read by others"),
        (model("float", "int8", (r"\n }", "\nz = QuantizeLinear(y, qs2, qz)\nk = Neg(z) }"),
               qs2=0.031), "read by others"),
    ],
)  # fmt: skip
def test_what_is_not_folded_has_a_reason(given: onnx.ModelProto, words: str) -> None:
    report = rx.optimize(given, fold_quantize=True).report
    (kept,) = report.unfolded
    assert (kept.reason, kept.kind) == ("quantizer-kept", "quantizer")
    assert words in kept.message
    (other,) = rx.optimize(given, target="ort", fold_quantize=True).report.unfolded
    assert other.kind == "quantizer"
    assert "0 of 1 quantized output" in report.headline()
    assert "quantizers (1)" in to_text(report)


def test_a_row_scale_with_a_bound_has_a_class_of_its_own() -> None:
    """As torchao writes it: the operator has no bound."""
    given = model("float", "int8_per_row", (r"rs = Div\(top", "tp = Clip(top, eps)\nrs = Div(tp"))
    kept = rx.optimize(given, fold_quantize=True).report
    assert kept.unfolded[0].hint == "allow --numerics unclamped"
    assert [site.op for site in kept.fused] == ["SkipRMSNorm"]
    (site,) = rx.optimize(given, fold_quantize=True, numerics="unclamped", prove=True).report.fused
    assert (site.op, site.numerics) == ("QuantizedSkipRMSNorm_int8_per_row", "unclamped")
    assert site.proof is not None
    assert site.proof.passed


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

"""MXFP8 codes of a norm, by TensorRT's node or by steps, are taken into its node."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.lower.portable import plugin_refuses
from rmsnorm_export.op import blocks
from rmsnorm_export.op.blocks import reference_blocks
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.proof.evaluate import run_numpy

NORM = """{wide}sq = Pow(f, two)
m = ReduceMean<keepdims = 1>(sq, end)
e = Add(m, eps)
s = Sqrt(e)
n = Div(f, s)
{back}y = Mul(t, w)
"""
NODE = "q, k = trt.TRT_MXFP8DynamicQuantize<axis = -1, block_size = 32, output_dtype = 17>(y)"
STEPS = """b = Reshape(y, cut)
a = Abs(b)
top = ReduceMax<keepdims = 1>(a, end)
{blocks}d = Div({top}, largest)
l = Log(d)
o = Div(l, ln)
c = Ceil(o)
x2 = Clip(c, low, bias)
x3 = Add(x2, bias)
k1 = Cast<to = 2>(x3)
p = Pow(base, x2)
r = Div({b}, p)
z = Clip(r, least, largest)
q1 = Cast<to = 17>(z)
q = Reshape(q1, whole)
k = Squeeze(k1, end)"""
FLOOR = (
    (r"\bd = .*\n", ""),
    ("Log.*", "Log({top})"),
    ("Ceil", "Floor"),
    (r"x2 = Clip\(c", r"g = Sub(c, eight)\nx2 = Clip(g"),
)
MODELOPT = (  # its scale for zeros, and a product with a power that is made from the stored scale
    (r"\bo = ", "o0 = "),
    (r"\bc = ", "nothing = Greater(d, zero)\no = Where(nothing, o0, low)\nc = "),
    (r"\bp = .*", "k2 = Cast<to = 1>(k1)\nk3 = Sub(bias, k2)\np = Pow(base, k3)"),
    ("r = Div", "r = Mul"),
)
CONSTANTS = (
    "float two = {2}, float eps = {0.00001}, float largest = {448}, float least = {-448}, "
    "float ln = {0.6931472}, float low = {-127}, float bias = {127}, float base = {2}, "
    "float eight = {8}, float zero = {0}, int64[4] cut = {2, 3, 2, 32}, "
    "int64[3] whole = {2, 3, 64}, int64[1] end = {-1}"
)


def model(dtype: str, text: str, *change: tuple[str, str], n: int = 64) -> onnx.ModelProto:
    """A norm and what makes MXFP8 codes of it; ``change``: (regular expression, text)."""
    half = dtype == "float16"
    for wanted, new in change:
        text, count = re.subn(wanted, new, text)
        assert count, wanted
    text = text.replace("{blocks}", "bw = Cast<to = 1>(b)\ntw = Cast<to = 1>(top)\n" * half)
    text = text.replace("{b}", "bw" if half else "b").replace("{top}", "tw" if half else "top")
    norm = NORM.format(wide="f = Cast<to = 1>(x)\n" * half, back="t = Cast<to = 10>(n)\n" * half)
    if not half:
        norm = re.sub(r"\bf\b", "x", re.sub(r"\bt\b", "n", norm))
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19, "trt" : 1]>\n'
        f"g ({dtype}[2,3,{n}] x) => (float8e4m3fn[2,3,{n}] q, uint8[2,3,{n // 32}] k)\n"
        f"<{CONSTANTS}>\n{{ {norm}{text}\n }}"
    )
    stored = np.float16 if half else np.float32
    weight = numpy_helper.from_array(np.linspace(0.5, 1.5, n).astype(stored), "w")
    made.graph.initializer.append(weight)
    return made


def evaluate(
    source: bytes, dtype: str, types: dict[str, np.dtype], x: np.ndarray
) -> dict[str, np.ndarray]:
    """Outputs by ONNX Runtime, which keeps more of float16 than its 16 bits: that by NumPy."""
    made = onnx.load_from_string(source)
    del made.graph.output[:]
    for name, kind in types.items():
        code = helper.np_dtype_to_tensor_dtype(kind)
        if dtype == "float16" or code != TensorProto.FLOAT8E4M3FN:
            made.graph.output.append(helper.make_tensor_value_info(name, code, None))
            continue
        # NumPy has no FP8.
        made.graph.node.append(helper.make_node("Cast", [name], ["wide"], to=TensorProto.FLOAT))
        made.graph.output.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, None))
    if dtype == "float16":
        return run_numpy(ir.serde.deserialize_model(made), {"x": x})
    session = onnxruntime.InferenceSession(made.SerializeToString())
    return dict(zip(types, session.run(None, {"x": x}), strict=True))


def rows(dtype: str) -> np.ndarray:
    """Blocks of all sizes, one of zeros, one with a NaN and one with an infinity."""
    x = np.random.default_rng(3).standard_normal((2, 3, 64))
    x *= np.logspace(-3, 2, 6).reshape(2, 3, 1)
    x[0, 0, 32:] = 0
    x[1, 2, 5] = np.nan
    x[1, 1, 40] = np.inf
    return x.astype(np.float16 if dtype == "float16" else np.float32)


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("text", "change", "how"),
    [
        (NODE, (), "mxfp8"),
        (STEPS, (), "mxfp8"),
        (STEPS, MODELOPT, "mxfp8"),
        (STEPS, FLOOR, "mxfp8_floor"),
    ],
    ids=["node", "steps", "modelopt", "floor"],
)
def test_codes_are_those_of_the_source(
    dtype: str, text: str, change: tuple[tuple[str, str], ...], how: str
) -> None:
    source = model(dtype, text, *change)
    result = rx.optimize(source, fold_quantize=True, prove=True)
    assert "1 of 1 quantized output" in result.report.headline()
    (site,) = result.report.fused
    assert (site.op, site.attributes["quantize"]) == (f"QuantizedRMSNorm_{how}", how)
    assert (site.numerics, site.proof is not None and site.proof.passed) == ("reordered", True)
    assert [node.op_type for node in result.model.graph] == [f"QuantizedRMSNorm_{how}"]
    content = result.to_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    given = rows(dtype)
    plain = rx.optimize(model(dtype, "q = Identity(y)\nk = Identity(w)")).to_bytes()
    y = evaluate(plain, dtype, {"q": given.dtype}, given)["q"]
    codes, scales = reference_blocks(y, how)
    made = evaluate(content, dtype, {"q": codes.dtype, "k": scales.dtype}, given)
    assert np.array_equal(made["k"], scales)
    assert np.array_equal(made["q"].astype(np.float32), codes.astype(np.float32), equal_nan=True)


def test_equal_quantizers_are_one() -> None:
    """As ModelOpt writes them: one for the input of each Linear."""
    given = model("float", NODE + "\n" + NODE.replace("q, k", "q2, k2") + "\nz = Neg(k3)"
                  "\nk3 = Identity(k2)\nz2 = Identity(q2)")  # fmt: skip
    nodes = given.graph.node
    nodes.remove(next(node for node in nodes if node.output[0] == "z"))
    given.graph.output.append(helper.make_tensor_value_info("k3", TensorProto.UINT8, [2, 3, 2]))
    result = rx.optimize(given, fold_quantize=True, prove=True)
    assert not result.report.unproved
    ops = [node.op_type for node in result.model.graph]
    assert ops == ["QuantizedRMSNorm_mxfp8", "Identity", "Identity"]
    x = rows("float")
    made = evaluate(result.to_bytes(), "float", dict.fromkeys(("k", "k3"), np.dtype(np.uint8)), x)
    assert np.array_equal(made["k"], made["k3"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((("axis = -1", "axis = 1"),), "whole blocks of 32"),
        ((("block_size = 32", "block_size = 16"),), "other codes or scales"),
        ((("output_dtype = 17", "output_dtype = 19"),), "other codes or scales"),
        ((("$", "\nz = Neg(y)\nz2 = Identity(z)"),), "read by others"),
    ],
)
def test_what_is_not_folded_has_a_reason(change: tuple[tuple[str, str], ...], words: str) -> None:
    report = rx.optimize(model("float", NODE, *change), fold_quantize=True).report
    (kept,) = report.unfolded
    assert (kept.reason, kept.kind) == ("quantizer-kept", "quantizer")
    assert words in kept.message


def test_a_row_of_no_whole_blocks_is_not_folded() -> None:
    (kept,) = rx.optimize(model("float", NODE, n=48), fold_quantize=True).report.unfolded
    assert "whole blocks of 32" in kept.message


def test_a_function_of_the_name_of_the_node_is_not_it() -> None:
    """It does what its nodes do."""
    given = model("float", NODE)
    function = helper.make_function(
        "trt", "TRT_MXFP8DynamicQuantize", ["a"], ["b", "c"],
        [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT8E4M3FN),
         helper.make_node("Cast", ["a"], ["c"], to=TensorProto.UINT8)],
        [helper.make_opsetid("", 19)], ["axis", "block_size", "output_dtype"],
    )  # fmt: skip
    given.functions.append(function)
    (site,) = rx.optimize(given, fold_quantize=True).report.fused
    assert site.op == "RMSNorm"


ALIKE = [
    (r"Div\(\{top\}, largest\)", "Div({top}, bias)"),
    (r"o = Div\(l, ln\)", "o = Div(l, two)"),
    (r"Ceil", "Round"),
    (r"Ceil", "Floor"),
    (r"Clip\(c, low, bias\)", "Clip(c, least, bias)"),
    (r"Clip\(c, low, bias\)", "Identity(c)"),
    (r"Add\(x2, bias\)", "Add(x2, eight)"),
    (r"Add\(x2, bias\)", "Add(c, bias)"),
    (r"Pow\(base, x2\)", "Pow(eight, x2)"),
    (r"Pow\(base, x2\)", "Pow(base, c)"),
    (r"r = Div", "r = Mul"),
    (r"Abs\(b\)", "Neg(b)"),
    (r"ReduceMax<keepdims = 1>\(a, end\)", "ReduceMax<keepdims = 1>(a, other)"),
    (r"ReduceMax", "ReduceMean"),
    (r"Cast<to = 17>\(z\)", "Cast<to = 17>(b)"),
    (r"Reshape\(y, cut\)", "Reshape(w3, cut)"),
    (r"k1 = Cast<to = 2>\(x3\)", "x4 = Neg(x3)\nk1 = Cast<to = 2>(x4)"),
    (r"k = Squeeze", "z9 = Neg(top)\nk = Squeeze"),
]


@pytest.mark.parametrize("change", ALIKE)
def test_look_alikes_keep_their_steps(change: tuple[str, str]) -> None:
    given = model("float", STEPS, change)
    given.graph.initializer.append(numpy_helper.from_array(np.array([-2]), "other"))
    given.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3, 64), np.float32), "w3"))
    (site,) = rx.optimize(given, fold_quantize=True).report.fused
    assert site.op == "RMSNorm"


@pytest.mark.parametrize("how", ["mxfp8", "mxfp8_floor"])
@pytest.mark.parametrize("wrong", ["limits", "reciprocals", "scale_codes"])
def test_a_proof_finds_other_codes(how: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(blocks, wrong)
    monkeypatch.setattr(blocks, wrong, lambda *args: np.roll(right(*args), 1))
    change = FLOOR if how == "mxfp8_floor" else ()
    report = rx.optimize(model("float", STEPS, *change), fold_quantize=True, prove=True).report
    (refused,) = report.unproved
    assert refused.reason == "proof-failed"
    assert refused.found.startswith("codes: ")


def test_a_file_with_codes_is_read_again() -> None:
    """It stays as it is, is taken apart for others, and written out."""
    folded = rx.optimize(model("float", NODE), fold_quantize=True).to_bytes()
    again = rx.optimize(folded, prove=True)
    assert again.report.headline().endswith("0 fused, 1 already one node")
    assert not again.report.unproved
    assert again.to_bytes() == folded
    x, types = rows("float"), {"q": np.dtype(ml_dtypes.float8_e4m3fn), "k": np.dtype(np.uint8)}
    before = evaluate(folded, "float", types, x)
    apart = rx.optimize(folded, target="ort")
    expanded = rx.optimize(folded, target="plain", sites=["*"], prove=True)
    assert not expanded.report.unproved
    assert not expanded.model.functions
    for other in (apart, expanded):
        after = evaluate(other.to_bytes(), "float", types, x)
        assert np.array_equal(before["k"], after["k"])
        assert np.array_equal(before["q"], after["q"], equal_nan=True)


class Mxfp8(torch.nn.Module):
    """A norm, and codes and scales as PyTorch code makes them."""

    def __init__(self, *, floor: bool) -> None:
        super().__init__()
        self.norm, self.floor = torch.nn.RMSNorm(64, eps=1e-6), floor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        parts = y.reshape(*y.shape[:-1], y.shape[-1] // 32, 32)
        top = torch.amax(torch.abs(parts), -1, keepdim=True).float()
        if self.floor:
            exponent = (torch.floor(torch.log2(top)) - 8).clamp(-127, 127)
        else:
            exponent = torch.ceil(torch.log2(top / 448.0)).clamp(-127, 127)
        codes = (parts.float() / torch.exp2(exponent)).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes.reshape(y.shape), (exponent + 127).to(torch.uint8).squeeze(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_pytorch_exports_is_folded(floor: bool, dtype: torch.dtype) -> None:
    dims = {0: torch.export.Dim("B"), 1: torch.export.Dim("S")}
    program = torch.onnx.export(
        Mxfp8(floor=floor).eval().to(dtype),
        (torch.randn(2, 3, 64, dtype=dtype),),
        dynamo=True,
        verbose=False,
        dynamic_shapes=None if floor else (dims,),
    )
    assert program is not None
    report = rx.optimize(program.model_proto, fold_quantize=True, prove=True).report
    (site,) = report.fused
    assert site.attributes["quantize"] == ("mxfp8_floor" if floor else "mxfp8")
    assert site.proof is not None
    assert site.proof.passed


def test_the_plugin_is_named_where_it_makes_the_codes() -> None:
    (node,) = rx.optimize(model("float16", NODE), fold_quantize=True).model.graph
    assert node.attributes.get_string("plugin_namespace") == "rmsnorm_export"
    for size, refused in ((32, False), (16, True)):
        why = plugin_refuses(
            "QuantizedRMSNorm", NormSpec(group_size=size), dtype=1, n=64, weights=[],
            quantize="mxfp8",
        )  # fmt: skip
        assert ("whole blocks" in why) == refused

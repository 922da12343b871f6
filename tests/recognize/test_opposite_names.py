"""Norms by an opposite name: a gain at the inverse, the root of n in the scale, pools as means."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch.nn.functional import normalize as unit_row

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.recognize import text_models as text
from tests.recognize.exports import EXPORTERS, N, export
from tests.recognize.test_half_l2_norms import evaluated, hold_the_same_numbers, run
from tests.sample import crossed

HEADS = (2, 3, 5, N)


def rstd(x, summed=False):
    wide = x.float() ** 2
    total = wide.sum(-1, keepdim=True) if summed else wide.mean(-1, keepdim=True)
    return torch.rsqrt(total + 1e-6)


def k_diffusion(x, p):
    return x * (p.weight.float() * rstd(x)).to(x.dtype)


def adaptive(x, p):
    gain = torch.tanh(x.mean(1, keepdim=True) * p.bias) + 1
    return x * (gain.float() * rstd(x)).to(x.dtype)


def adaptive_first(x, p):
    rms = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return x * torch.tanh(x.mean(1, keepdim=True) * p.bias) / rms


def one_for_each_head(x, p):
    return x * (p.weight[:3, None, None].float() * rstd(x)).to(x.dtype)


def cosine_similarity(x, p):
    return x * (p.weight[:3, None, None].sqrt().float() * rstd(x, summed=True)).to(x.dtype)


def haiku(x, p):
    mean = torch.broadcast_to(x.square().mean(-1, keepdim=True), x.shape)
    return x * (torch.broadcast_to(p.weight, x.shape) * torch.rsqrt(mean + 1e-6))


def root_in_the_weight(x, p):
    return unit_row(x, dim=-1) * (p.weight * N**0.5)


def no_root_at_all(x, p):
    return unit_row(x, dim=-1) * p.weight


def heads_before_the_root(x, p):
    return unit_row(x, dim=-1) * p.weight[:3, None, None] * N**0.5


def temperature(x, _):
    return 10.0 / x.norm(dim=-1, keepdim=True).clamp_min(1e-5) * x


def over_the_third_axis(x, p):
    rms = (x.square().mean(2, keepdim=True) + 1e-6).sqrt()
    return x / rms * p.weight[:5, None]


def inputs(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0] *= np.float32(1e-3)
    x[-1, -1] = 0
    return x


def agree(model, result, feeds, **tolerance):
    before = run_onnxruntime(ir.serde.deserialize_model(model), feeds)
    after = run_onnxruntime(result.model, feeds)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, **tolerance)


FORMULAS = [
    (k_diffusion, (2, 5, N)), (adaptive, (2, 5, N)), (adaptive_first, (2, 5, N)),
    (one_for_each_head, HEADS), (cosine_similarity, HEADS), (haiku, (2, 5, N)),
    (root_in_the_weight, (2, 5, N)), (no_root_at_all, (2, 5, N)), (over_the_third_axis, HEADS),
    (heads_before_the_root, HEADS), (temperature, (2, 5, N)),
]  # fmt: skip


@crossed(11, case=FORMULAS, exporter=[*EXPORTERS])
def test_they_are_found_and_proved(case, exporter):
    formula, shape = case
    model = export(formula, exporter, shape)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    assert not result.report.refused
    assert site.numerics == ("exact" if formula is over_the_third_axis else "reordered")
    agree(model, result, {"input0": inputs(shape)}, rtol=3e-6, atol=1e-6)


def weighted_and_scaled(x, p):
    return k_diffusion(x, p) * p.weight + p.bias


ROUNDED = [*FORMULAS[:5], (weighted_and_scaled, (2, 5, N))]


@crossed(3, case=ROUNDED, exporter=[*EXPORTERS], dtype=[torch.float16, torch.bfloat16])
def test_in_half_precision_the_rounded_inverse_is_exact_in_a_body(case, exporter, dtype):
    formula, shape = case
    model = export(formula, exporter, shape, dtype=dtype)
    name = {adaptive_first: f"RMSNorm_stash_{dtype}_association_2".replace("torch.", "")}
    name = name.get(formula, "RMSNorm_round_rstd_scale_rstd")
    name += "" if formula in (k_diffusion, weighted_and_scaled) else "_scale_varies"
    half = dtype == torch.float16
    how = {"dtype": np.float16 if half else ml_dtypes.bfloat16, "shape": shape}
    for target in ("portable", "plain"):
        result = rx.optimize(model, target=target, prove=True)
        (site,) = result.report.fused
        assert site.numerics == ("reordered" if formula is cosine_similarity else "exact")
        hold_the_same_numbers(model, result, *[evaluated, run][: 1 + half], **how)
        if target == "portable":
            assert site.op == name
            assert any("the TensorRT plugin leaves this node" in note for note in site.notes)
            own = onnx.load_from_string(result.to_bytes())
            again = rx.optimize(own, target="plain", prove=True)
            assert len(again.report.fused) == 1
            hold_the_same_numbers(model, again, evaluated, **how)
            report = rx.optimize(own, target="ort").report
            assert not report.fused


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("formula", [k_diffusion, adaptive], ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["ort", "onnx"])
def test_in_half_precision_operators_need_upcast_for_the_rounded_inverse(formula, target, dtype):
    model = export(formula, "torchscript17", dtype=dtype)
    (refusal,) = rx.optimize(model, target=target).report.refused
    assert (refusal.reason, refusal.kind) == ("numerics", "norm")
    assert "scale / rms rounded" in refusal.found
    result = rx.optimize(model, target=target, numerics="upcast", prove=True)
    assert [site.numerics for site in result.report.fused] == ["upcast"]
    if dtype == torch.float16:
        feeds = {"input0": inputs((2, 5, N)).astype(np.float16)}
        agree(model, result, feeds, rtol=2e-3, atol=1e-6)


def chain(mean, *, shape="B,5,8", constants=""):
    """Return a norm of which the mean ``m`` is made of ``sq`` otherwise."""
    return text.model(
        f"sq = Mul(x, x)\n {mean}\n e = Add(m, eps)\n s = Sqrt(e)\n r = Reciprocal(s)\n"
        " g = Mul(w, r)\n y = Mul(x, g)",
        inputs=f"float[{shape}] x",
        outputs=f"float[{shape}] y",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}{constants}",
    )


def matrix(rows, columns, value=1 / 8):
    numbers = ", ".join([str(value)] * rows * columns)
    return f", float[{rows},{columns}] k = {{{numbers}}}"


ONE_DIFFERS = ", float[8,1] k = {0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.25}"

MEANS = [
    ("m = GlobalAveragePool(sq)", {}),
    ("m = AveragePool<kernel_shape = [8], strides = [3]>(sq)", {}),
    ("m = AveragePool<kernel_shape = [1, 8]>(sq)", {"shape": "B,3,5,8"}),
    ("m = MatMul(sq, k)", {"constants": matrix(8, 1)}),
    ("m = MatMul(sq, k)", {"constants": matrix(8, 8)}),
    ("t = MatMul(sq, k)\n m = Div(t, n)", {"constants": matrix(8, 1, 1) + ", float n = {8}"}),
]


@pytest.mark.parametrize("target", text.TARGETS)
@pytest.mark.parametrize(("mean", "how"), MEANS)
def test_pools_and_products_are_means(mean, how, target):
    model = chain(mean, **how)
    result = rx.optimize(model, target=target, prove=True)
    assert len(result.report.fused) == 1
    shape = [2, *map(int, how.get("shape", "B,5,8").split(",")[1:])]
    agree(model, result, {"x": inputs(shape)}, rtol=3e-6, atol=1e-6)


OF_COLUMNS = {"shape": "8,8", "constants": matrix(1, 8)}
OTHERS = [
    ("m = AveragePool<kernel_shape = [3], pads = [1, 1]>(sq)", {}, []),
    ("m = MatMul(sq, k)", {"constants": ONE_DIFFERS}, []),
    ("m = MatMul(k, sq)", OF_COLUMNS, ["spelling-unknown"]),
]


@pytest.mark.parametrize(("mean", "how", "reasons"), OTHERS)
def test_other_pools_and_products_are_none_of_rows(mean, how, reasons):
    report = rx.optimize(chain(mean, **how), numerics="unclamped").report
    assert not report.fused
    assert [refusal.reason for refusal in report.refused] == reasons


@pytest.mark.parametrize(
    ("mean", "how"),
    [
        ("m = AveragePool<kernel_shape = [10], pads = [1, 1]>(sq)", {}),  # padding does not count
        ("m = Gemm(sq, k)", {"shape": "5,8", "constants": matrix(8, 1)}),
    ],
)
def test_means_that_are_not_followed_are_of_norms(mean, how):
    (site,) = rx.optimize(chain(mean, **how)).report.fused
    assert site.numerics == "reordered"


def test_epsilon_may_be_the_exponential_of_a_constant():
    model = text.model(
        "t = Exp(log)\n sq = Mul(x, x)\n m = ReduceMean<axes = [-1]>(sq)\n e = Add(m, t)\n"
        "s = Sqrt(e)\n n = Div(x, s)\n y = Mul(n, w)",
        constants=f"{text.WEIGHT}, float log = {{-11.5}}",
    )
    (site,) = rx.optimize(model, prove=True).report.fused
    assert site.epsilon == pytest.approx(np.exp(-11.5), rel=1e-6)


GAINS = [("B,1,8", 1), ("B,5,8", 1), ("5,1", 1), ("8,5,8", 0), ("1,B,5,8", 0), ("G", 0)]


@pytest.mark.parametrize(("shape", "count"), GAINS)
def test_a_gain_that_may_change_the_shape_is_left(shape, count):
    model = text.model(
        "sq = Mul(x, x)\n m = ReduceMean<axes = [-1]>(sq)\n e = Add(m, eps)\n s = Sqrt(e)\n"
        " r = Reciprocal(s)\n g = Mul(gain, r)\n y = Mul(x, g)",
        inputs=f"float[B,5,8] x, float[{shape}] gain",
        outputs="float[B,5,8] y",
    )
    report = rx.optimize(model).report
    assert len(report.fused) == count
    assert [(r.reason, r.kind) for r in report.refused] == [("scale-shape", "norm")] * (1 - count)


@pytest.mark.parametrize(
    ("body", "numerics"),
    [("n = RMSNormalization(wide, w)\n y = Cast<to = 10>(n)", "exact"),
     ("n = RMSNormalization(wide, ones)\n h = Cast<to = 10>(n)\n y = Mul(h, v)", "exact")],
)  # fmt: skip
def test_casts_around_a_native_norm_are_taken_in(body, numerics):
    model = text.model(
        f"wide = Cast<to = 1>(x)\n {body}",
        inputs="float16[B,5,8] x",
        outputs="float16[B,5,8] y",
        constants=f"{text.WEIGHT}, float16[8] v = {{1,2,3,4,5,6,7,8}}, "
        "float[8] ones = {1,1,1,1,1,1,1,1}",
        opset=23,
    )
    result = rx.optimize(model, target="portable", prove=True)
    (site,) = result.report.fused
    assert site.numerics == numerics
    assert [node.op_type for node in result.model.graph] == ["RMSNorm"]
    x = inputs((2, 5, 8)).astype(np.float16)
    agree(model, result, {"x": x}, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("body", "left"),
    [("y = Add(h, w)", "Add"), ("y = Mul(h, w)", "Mul"), ("y = Mul(h, act)", "Mul"),
     ("i = Mul(act, v)\n y = Mul(h, i)", "Mul")],
)  # fmt: skip
@pytest.mark.parametrize("target", text.TARGETS)
def test_what_follows_a_gain_is_not_taken_before_it(body, left, target):
    """A bias, a weight or a gate that the node took would be scaled by the gain."""
    model = text.model(
        "sq = Mul(x, x)\n m = ReduceMean<axes = [-1]>(sq)\n e = Add(m, eps)\n s = Sqrt(e)\n"
        " r = Reciprocal(s)\n g = Mul(gain, r)\n h = Mul(x, g)\n"
        f" v = Neg(x)\n z = Sigmoid(v)\n act = Mul(v, z)\n {body}",
        inputs="float[B,5,8] x, float[B,1,8] gain",
        outputs="float[B,5,8] y",
    )
    result = rx.optimize(model, target=target, prove=True)
    assert [site.numerics for site in result.report.fused] == ["reordered"]
    assert left in [node.op_type for node in result.model.graph]
    gain = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 1, 8)
    agree(model, result, {"x": inputs((2, 5, 8)), "gain": gain}, rtol=3e-6, atol=1e-6)


def test_a_residual_in_front_of_a_gain_stays_an_add():
    model = text.model(
        "x = Add(a, b)\n sq = Mul(x, x)\n m = ReduceMean<axes = [-1]>(sq)\n e = Add(m, eps)\n"
        " s = Sqrt(e)\n r = Reciprocal(s)\n g = Mul(gain, r)\n y = Mul(x, g)\n z = Mul(x, y)",
        inputs="float[B,5,8] a, float[B,5,8] b, float[B,1,8] gain",
        outputs="float[B,5,8] z",
    )
    report = rx.optimize(model, prove=True).report
    assert len(report.fused) == 1
    (kept,) = report.unfolded
    assert (kept.reason, kept.kind) == ("residual-kept", "residual")
    assert "behind the norm" in kept.message


@pytest.mark.parametrize(("shape", "axis"), [("2,8,5", 1), ("2,8,5,3", 1), ("2,3,8,5", 2)])
def test_gains_of_rows_that_are_not_last(shape, axis):
    sizes = [*map(int, shape.split(","))]
    gains = [size if place <= axis else 1 for place, size in enumerate(sizes)]
    model = text.model(
        f"sq = Mul(x, x)\n m = ReduceMean<axes = [{axis}]>(sq)\n e = Add(m, eps)\n s = Sqrt(e)\n"
        " r = Reciprocal(s)\n g = Mul(gain, r)\n y = Mul(x, g)",
        inputs=f"float[{shape}] x, float[{','.join(map(str, gains))}] gain",
        outputs=f"float[{shape}] y",
    )
    result = rx.optimize(model, prove=True)
    assert [site.numerics for site in result.report.fused] == ["reordered"]
    gain = np.random.default_rng(1).standard_normal(gains).astype(np.float32)
    agree(model, result, {"x": inputs(sizes), "gain": gain}, rtol=3e-6, atol=1e-6)
    for target in ("ort", "onnx"):
        (refusal,) = rx.optimize(model, target=target).report.refused
        assert (refusal.reason, refusal.kind) == ("channels", "norm")


@pytest.mark.parametrize(
    ("numbers", "rows", "columns"), [("1.5, 0.5", 8, 16), ("0, 0", 8, 8), ("0.125, 0.125", 16, 8)]
)
def test_a_layer_behind_a_squared_activation_is_no_sum(numbers, rows, columns):
    """The residual sum with it is normalised as any other."""
    n = columns
    gamma = ", ".join(["0.5"] * n)
    up = ", ".join(["0.25", "-0.25"] * (n * rows // 2))
    model = text.model(
        "h = MatMul(x, up)\n a = Relu(h)\n sq = Mul(a, a)\n d = MatMul(sq, k)\n t = Add(x, d)\n"
        " p = Mul(t, t)\n m = ReduceMean<axes = [-1]>(p)\n e = Add(m, eps)\n s = Sqrt(e)\n"
        " v = Div(t, s)\n y = Mul(v, g)",
        inputs=f"float[B,5,{n}] x",
        outputs=f"float[B,5,{n}] y",
        constants=f"{text.CONSTANTS}, float[{n}] g = {{{gamma}}}, float[{n},{rows}] up = {{{up}}}, "
        f"float[{rows},{columns}] k = {{{', '.join([numbers] * (rows * columns // 2))}}}",
    )
    (site,) = rx.optimize(model, prove=True).report.fused
    assert (site.op, site.residual) == ("SkipRMSNorm", True)


MEAN = "q = Mul(x, x)\n d = ReduceMean<axes = [-1]>(q)\n"
SUMS = [
    *(f"{MEAN} h = {h}" for h in ("Add(x, d)", "Add(d, w)", "Sub(d, x)", "Mul(x, d)", "Div(x, d)")),
    f"{MEAN} h = Max(d, x)",
    f"{MEAN} c = Shape(x)\n k = Expand(d, c)\n h = Add(k, x)",
    f"{MEAN} k = Sqrt(d)\n j = Reciprocal(k)\n h = Add(x, j)",
    "q = Mul(x, x)\n d = MatMul(q, col)\n k = Add(d, eps)\n h = Add(x, k)",
    "d = ReduceSumSquare<axes = [-1]>(x)\n h = Add(d, x)",
    "d = ReduceL2<axes = [-1]>(x)\n h = Add(d, x)",
]


@pytest.mark.parametrize("shape", ["B,5,8", ""])
@pytest.mark.parametrize("row", SUMS)
def test_a_mean_square_added_to_a_row_is_a_row(row, shape):
    """Told at most of what was a root before."""
    model = text.model(
        f"{row}\n {text.norm('h', 'y')}",
        inputs=f"float[{shape}] x",
        outputs=f"float[{shape}] y",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float[8,1] col = {{1, 2, 3, 4, 5, 6, 7, 8}}",
    )
    result = rx.optimize(model, prove=True)
    assert len(result.report.fused) == 1
    reasons = {"epsilon-not-constant", "row-length-unknown"}
    assert {r.reason for r in result.report.refused} <= reasons
    agree(model, result, {"x": inputs((2, 5, 8))}, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("root", ["s = Sqrt(e)", "s = Pow(e, half)"])
@pytest.mark.parametrize("shape", ["", "1", "B,5,1", "B,5,8", "8"])
def test_an_epsilon_of_any_shape_that_is_no_constant_is_told(shape, root):
    model = text.model(
        f"{MEAN} e = Add(d, k)\n {root}\n y = Div(x, s)",
        inputs=f"float[B,5,8] x, float[{shape}] k",
        constants=f"{text.CONSTANTS}, float half = {{0.5}}",
    )
    (refusal,) = rx.optimize(model).report.refused
    assert (refusal.reason, refusal.kind) == ("epsilon-not-constant", "norm")


UNIT = "c = Relu(x)\n l = ReduceL2<axes = [-1]>(c)\n m = Clip(l, eps)\n u = Div(c, m)\n "
SHAPE = "t = Shape(c)\n i = Constant<value_int = -1>()\n k = Gather(t, i)\n f = Cast<to = 1>(k)\n"
FACTORS = [
    ("h = Mul(u, heads)\n y = Mul(h, root)", 1), ("h = Mul(heads, u)\n y = Mul(root, h)", 1),
    ("h = Mul(u, w)\n y = Mul(h, root)", 1), ("h = Mul(u, heads)\n y = Div(h, inverse)", 1),
    ("t = Tanh(c)\n h = Mul(u, t)\n y = Mul(h, root)", 1), ("t = Tanh(c)\n y = Mul(u, t)", 0),
    ("h = Mul(u, heads)\n k = Mul(h, heads)\n y = Mul(k, root)", 1), ("y = Mul(u, heads)", 1),
    ("h = Mul(u, two)\n k = Mul(h, heads)\n y = Mul(k, two)", 1), ("y = Mul(u, two)", 1),
    ("h = Mul(u, two)\n y = Mul(h, w)", 1), ("h = Mul(u, w)\n y = Mul(two, h)", 1),
    ("h = Div(two, m)\n y = Mul(c, h)", 1), ("h = Mul(c, two)\n y = Div(h, m)", 1),
    ("h = Mul(u, two)\n k = Mul(h, root)\n y = Mul(k, w)", 1), ("y = Mul(u, one)", 0),
    ("h = Mul(u, two)\n y = Add(h, w)", 1), ("y = Identity(u)", 0), ("y = Mul(u, minus)", 0),
    (f"{SHAPE} j = Sqrt(f)\n y = Mul(u, j)", 1),
]  # fmt: skip


@pytest.mark.parametrize(("factors", "count"), FACTORS)
def test_a_row_of_length_one_is_told_by_what_it_is_multiplied_with(factors, count):
    heads = ", ".join(["1.5", "0.5", "2", "-1"] * 8)
    model = text.model(
        UNIT + factors,
        inputs="float[B,4,5,8] x",
        outputs="float[B,4,5,8] y",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float root = {{2.8284271}}, "
        f"float one = {{1}}, float minus = {{-2}}, float inverse = {{0.35355339}}, "
        f"float[4,1,8] heads = {{{heads}}}",
    )
    for target in text.TARGETS:
        numerics = "reordered" if target == "portable" else "unclamped"
        result = rx.optimize(model, target=target, numerics=numerics, prove=True)
        assert len(result.report.fused) == count
        told = [(r.reason, r.kind) for r in result.report.refused]
        assert told == [("not-the-mean", "look-alike")] * (1 - count)
        x = inputs((2, 4, 5, 8))
        x[0] *= 1 if target == "portable" else 1e3
        agree(model, result, {"x": x}, rtol=3e-6, atol=1e-6)


ZEROS = [("1", 1), ("2,5,8", 1), ("2,5,1", 1), ("8", 1), ("1,2,5,8", 0), ("2,2,5,8", 0)]


@pytest.mark.parametrize(("shape", "count"), ZEROS)
def test_zeros_that_are_subtracted_are_nothing(shape, count):
    zeros = ", ".join(["0"] * int(np.prod([*map(int, shape.split(","))])))
    model = text.model(
        f"{MEAN} z = Sub(x, zeros)\n e = Add(d, eps)\n s = Sqrt(e)\n n = Div(z, s)\n y = Mul(n, w)",
        inputs="float[2,5,8] x",
        outputs="float[2,5,8] y" if count else f"float[{shape}] y",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float[{shape}] zeros = {{{zeros}}}",
    )
    result = rx.optimize(model, prove=True)
    assert len(result.report.fused) == count
    agree(model, result, {"x": inputs((2, 5, 8))}, rtol=3e-6, atol=1e-6)


READERS = [("", 2), ("t = Mul(w, n)", 3), ("t = Neg(n)", 1), ("t = Tanh(x)\n o = Mul(n, t)", 1),
           ("t = Mul(n, w)\n o = Mul(n, w)\n p = Mul(n, w)", 1)]  # fmt: skip


@pytest.mark.parametrize("target", text.TARGETS)
@pytest.mark.parametrize(("reader", "count"), READERS)
def test_a_row_with_several_scales_is_as_many_norms(reader, count, target):
    """Up to four: more of them take longer than one norm and its products."""
    last = reader.split(" = ")[-2].split()[-1] if reader else "y"
    model = text.model(
        f"x = Add(a, b)\n {text.norm('x', 'n', weight=None)}\n y = Mul(n, w)\n z = Mul(v, n)\n"
        + reader,
        inputs="float[B,5,8] a, float[B,5,8] b",
        outputs="float[B,5,8] z" + "".join(f", float[B,5,8] {v}" for v in {"y", last}),
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float[8] v = {{8, 7, 6, 5, 4, 3, 2, 1}}",
    )
    result = rx.optimize(model, target=target, prove=True)
    assert len(result.report.fused) == count
    assert sum(site.residual for site in result.report.fused) == (target != "onnx")
    x = inputs((2, 5, 8))
    agree(model, result, {"a": x, "b": x + 1}, rtol=3e-6, atol=1e-6)

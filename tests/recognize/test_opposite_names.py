"""Norms by an opposite name: a gain at the inverse, the root of n in the scale, pools as means."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.nn.functional import normalize as unit_row

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.recognize import text_models as text
from tests.recognize.exports import EXPORTERS, N, export
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
    np.testing.assert_allclose(*after.values(), *before.values(), **tolerance)


FORMULAS = [
    (k_diffusion, (2, 5, N)), (adaptive, (2, 5, N)), (adaptive_first, (2, 5, N)),
    (one_for_each_head, HEADS), (cosine_similarity, HEADS), (haiku, (2, 5, N)),
    (root_in_the_weight, (2, 5, N)), (no_root_at_all, (2, 5, N)), (over_the_third_axis, HEADS),
]  # fmt: skip


@crossed(9, case=FORMULAS, exporter=[*EXPORTERS])
def test_they_are_found_and_proved(case, exporter):
    formula, shape = case
    model = export(formula, exporter, shape)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    assert not result.report.refused
    assert site.numerics == ("exact" if formula is over_the_third_axis else "reordered")
    agree(model, result, {"input0": inputs(shape)}, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("formula", [k_diffusion, adaptive], ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", text.TARGETS)
def test_in_half_precision_the_rounded_inverse_needs_upcast(formula, target):
    model = export(formula, "torchscript17", dtype=torch.float16)
    (refusal,) = rx.optimize(model, target=target).report.refused
    assert (refusal.reason, refusal.kind) == ("numerics", "norm")
    assert "scale / rms rounded to float16" in refusal.found
    result = rx.optimize(model, target=target, numerics="upcast", prove=True)
    assert [site.numerics for site in result.report.fused] == ["upcast"]
    agree(model, result, {"input0": inputs((2, 5, N)).astype(np.float16)}, rtol=2e-3, atol=1e-6)


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


OTHERS = [
    ("m = AveragePool<kernel_shape = [3], pads = [1, 1]>(sq)", {}, "windowed-mean"),
    ("m = AveragePool<kernel_shape = [10], pads = [1, 1]>(sq)", {}, "windowed-mean"),
    ("m = MatMul(sq, k)", {"constants": ONE_DIFFERS}, "weighted-square"),
    ("m = MatMul(k, sq)", {"shape": "8,8", "constants": matrix(1, 8)}, "weighted-square"),
    ("m = Gemm(sq, k)", {"shape": "5,8", "constants": matrix(8, 1)}, "weighted-square"),
]  # fmt: skip


@pytest.mark.parametrize(("mean", "how", "reason"), OTHERS)
def test_other_pools_and_products_are_none(mean, how, reason):
    report = rx.optimize(chain(mean, **how), numerics="unclamped").report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [(reason, "look-alike")]


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

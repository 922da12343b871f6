"""RMSNorms over one axis with others behind it, mostly channels: timm, Wan, LTX, Apollo."""

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

LINE, IMAGE, VOLUME = (2, N, 5), (2, N, 4, 5), (2, N, 3, 4, 5)


def behind(w, x):
    return w.reshape(-1, *(1,) * (x.dim() - 2))


def over(axes, epsilon=1e-6):
    return lambda x, _: x * torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)


def timm(x, p):
    return over(1)(x, p) * behind(p.weight, x)


def ltx(x, _):
    return x / torch.sqrt(x.square().mean(1, keepdim=True) + 1e-8)


def wan(x, p):
    return unit_row(x, dim=1) * N**0.5 * behind(p.weight, x) + behind(p.bias, x)


NORMS = [(timm, LINE), (timm, IMAGE), (timm, VOLUME), (ltx, VOLUME)]
NORMS += [(wan, LINE), (wan, IMAGE), (wan, VOLUME)]


@crossed(3, exporter=[*EXPORTERS], case=NORMS)
def test_they_are_one_node_without_transposes(case, exporter):
    formula, shape = case
    model = export(formula, exporter, shape)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    axis, clamped = 1 - len(shape), {"epsilon_clamp": 1} if formula is wan else {}
    assert site.attributes == {"axis": axis, **clamped, "last_axis": axis}
    assert site.numerics == ("reordered" if clamped else "exact")
    assert site.n == N
    assert site.op == ("RMSNorm_epsilon_clamp_channels" if clamped else "RMSNorm_channels")
    assert "Transpose" not in {node.op_type for node in result.model.graph.all_nodes()}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0, :, 0] = 0
    sides = (ir.serde.deserialize_model(model), result.model)
    before, after = (run_onnxruntime(side, {"input0": x}) for side in sides)
    np.testing.assert_allclose(*after.values(), *before.values(), rtol=2e-6, atol=1e-6)
    for target in ("ort", "onnx"):
        (refusal,) = rx.optimize(model, target=target, numerics="unclamped").report.refused
        assert (refusal.reason, refusal.kind) == ("channels", "norm")


def apollo(x, p):
    groups = x.view(2, 3, N // 3, 5)
    return over(2)(groups, p).reshape(x.shape) * behind(p.weight, x)


def espnet(x, p):
    return over(1)(x, p) * p.weight


def unsqueezed(x, _):
    return x * torch.rsqrt(x.square().mean(1) + 1e-6).unsqueeze(1)


def batch(x, p):
    return x / torch.sqrt(x.square().mean(0) + 1e-6) * p.weight


ONE_AXIS = [(over(0), IMAGE, -4), (over(2), IMAGE, -2), (ltx, LINE, -2), (apollo, LINE, -2)]
ONE_AXIS += [(espnet, (2, 5, N), -2), (unsqueezed, LINE, -2), (batch, (2, 5, N), -3)]


@crossed(3, exporter=[*EXPORTERS], case=ONE_AXIS)
def test_any_one_axis_is_a_row_whatever_scale_follows(case, exporter):
    formula, shape, axis = case
    model = export(formula, exporter, shape)
    x = {"input0": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (expected,) = run_onnxruntime(ir.serde.deserialize_model(model), x).values()
    for target in ("portable", "plain"):
        result = rx.optimize(model, target=target, prove=True)
        (site,) = result.report.fused
        assert site.attributes == {"axis": axis, "last_axis": axis}
        assert (site.numerics, result.report.refused) == ("exact", ())
        (value,) = run_onnxruntime(result.model, x).values()
        np.testing.assert_allclose(value, expected, rtol=2e-6, atol=1e-6)
    for target in ("ort", "onnx"):
        (refusal,) = rx.optimize(model, target=target).report.refused
        assert (refusal.reason, refusal.kind) == ("channels", "norm")


SEVERAL = [(over((1, 2)), "axes-not-trailing", "norm"), (over((0, 3)), "axes-not-trailing", "norm")]
SEVERAL += [
    (lambda x, _: x * torch.rsqrt(x.square().mean((1, 2)).view(2, 1, 1, 5) + 1), *SEVERAL[0][1:]),
    (lambda x, _: x * torch.rsqrt(x.square().sum((1, 2), True) + 1), "not-the-mean", "look-alike"),
    (lambda x, _: over((1, 2))(x - x.mean((1, 2), True), _), "layer-norm", "look-alike"),
    (lambda x, _: torch.sqrt(x.square().mean((1, 2)) + 1), "no-normalised-row", "look-alike"),
]


@crossed(3, exporter=[*EXPORTERS], case=SEVERAL)
def test_rows_of_several_axes_that_are_not_the_last_are_norms_where_the_definition_holds(
    case, exporter
):
    report = rx.optimize(export(case[0], exporter, IMAGE)).report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [case[1:]]


@pytest.mark.parametrize(
    ("axis", "shape", "reason"),
    [(0, "3,3,3", None), (1, "3,3,3", "axes-misplaced"), (2, "3,3,3", "axes-misplaced"),
     (1, "3,1,3", None), (2, "3,3,1", None)],
)  # fmt: skip
def test_expand_puts_axes_that_are_missing_in_front(axis, shape, reason):
    """Where a mean without its axis is repeated, or its axis is put back by a Reshape."""
    repeat = "Expand" if shape == "3,3,3" else "Reshape"
    source = text.model(
        f"s = Mul(x, x)\n m = ReduceMean<axes = [{axis}], keepdims = 0>(s)\n b = {repeat}(m, to)\n"
        "e = Add(b, eps)\n r = Sqrt(e)\n y = Div(x, r)",
        inputs="float[3,3,3] x",
        outputs="float[3,3,3] y",
        constants=f"{text.CONSTANTS}, int64[3] to = {{{shape}}}",
    )
    result = rx.optimize(source, prove=True)
    assert [r.reason for r in result.report.refused] == ([reason] if reason else [])
    text.check_same(source, ir.serde.serialize_model(result.model))


@pytest.mark.parametrize("target", text.TARGETS)
def test_channels_of_single_pixels_are_a_row(target):
    """As after a pooling: every target can say it."""
    source = text.model(
        text.norm("x", "y").replace("[-1]", "[1]"),
        inputs="float[B,4,1,1] x",
        outputs="float[B,4,1,1] y",
        constants=f"{text.CONSTANTS}, float[4,1,1] w = {{1,2,3,4}}",
    )
    report, proto = text.optimized(source, target)
    assert (len(report.fused), len(proto.graph.node)) == (1, 1)

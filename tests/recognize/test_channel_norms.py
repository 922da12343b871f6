"""RMSNorms over the channels of NCL, NCHW and NCDHW: 1-D U-Nets, timm, the VAEs of Wan and LTX."""

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


OTHERS = [(over(0), IMAGE), (over(2), IMAGE), (over((1, 2)), IMAGE), (ltx, LINE)]
"""Without a scale along it the second axis of three may be tokens."""


@crossed(3, exporter=[*EXPORTERS], case=OTHERS)
def test_other_axes_are_look_alikes(case, exporter):
    report = rx.optimize(export(case[0], exporter, case[1])).report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [("axes-not-trailing", "look-alike")]


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

"""RMSNorms over the channels of NCL, NCHW and NCDHW: 1-D U-Nets, timm, the VAEs of Wan and LTX."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_row

import rmsnorm_export as rx
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.sample import crossed, sampled

N = 24
EXPORTERS = {"TorchScript": (False, 17), "dynamo 18": (True, 18), "dynamo 23": (True, 23)}
LINE, IMAGE, VOLUME = (2, N, 5), (2, N, 4, 5), (2, N, 3, 4, 5)


class Channels(nn.Module):
    """``x * rsqrt(mean(x ** 2, 1) + eps) * weight[:, None, None]``, as timm has it."""

    def __init__(self, axes: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, N))
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        v = x.square().mean(1, keepdim=True)
        x = x * torch.rsqrt(v + 1e-6)
        return x * self.weight.reshape(-1, *(1,) * self.axes)


class Weightless(nn.Module):
    """LTX: the mean over the second axis, and no weight."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.square().mean(1, keepdim=True) + 1e-8)


class Normalize(nn.Module):
    """Wan: ``F.normalize(x, dim=1) * scale * gamma + bias``."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, N).reshape(-1, *(1,) * axes))
        self.bias = nn.Parameter(torch.linspace(-1, 1, N).reshape(-1, *(1,) * axes))

    def forward(self, x: Tensor) -> Tensor:
        return unit_row(x, dim=1) * N**0.5 * self.gamma + self.bias


class Permuted(nn.Module):
    """A trailing norm between two Transposes, as timm's LayerNorm2d has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, N))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
        return x.permute(0, 3, 1, 2)


def export(
    module: nn.Module,
    exporter: str,
    shape: tuple[int, ...] = IMAGE,
    dtype: torch.dtype = torch.float32,
) -> onnx.ModelProto:
    dynamo, opset = EXPORTERS[exporter]
    x = torch.randn(shape, dtype=dtype)
    module = module.eval().to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(module, (x,), dynamo=True, opset_version=opset)
            assert program is not None
            return program.model_proto
        target = io.BytesIO()
        torch.onnx.export(module, (x,), target, dynamo=False, opset_version=opset)
    return onnx.load_from_string(target.getvalue())


@crossed(
    3,
    exporter=list(EXPORTERS),
    case=[
        (Channels(1), LINE),
        (Channels(), IMAGE),
        (Channels(3), VOLUME),
        (Weightless(), VOLUME),
        (Normalize(1), LINE),
        (Normalize(2), IMAGE),
        (Normalize(3), VOLUME),
    ],
)
def test_they_are_one_node_without_transposes(case, exporter):
    module, shape = case
    model = export(module, exporter, shape)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    axis = 1 - len(shape)
    clamped = {"epsilon_clamp": 1} if isinstance(module, Normalize) else {}
    assert site.attributes == {"axis": axis, **clamped, "last_axis": axis}
    assert site.numerics == ("reordered" if clamped else "exact")
    assert site.n == N
    assert site.op == ("RMSNorm_epsilon_clamp_channels" if clamped else "RMSNorm_channels")
    assert not [node for node in result.model.graph.all_nodes() if node.op_type == "Transpose"]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0, :, 0] = 0
    (name,) = (value.name for value in model.graph.input)
    wanted = run_onnxruntime(ir.serde.deserialize_model(model), {name: x})
    for key, values in run_onnxruntime(result.model, {name: x}).items():
        np.testing.assert_allclose(values, wanted[key], rtol=2e-6, atol=1e-6)
    for target in ("ort", "onnx"):
        (refusal,) = rx.optimize(model, target=target, numerics="unclamped").report.refused
        assert (refusal.reason, refusal.kind) == ("channels", "norm")


@sampled("exporter", EXPORTERS, ("TorchScript", "dynamo 23"))
def test_in_float16(exporter):
    model = export(Channels(), exporter, dtype=torch.float16)
    (site,) = rx.optimize(model, numerics="upcast", prove=True).report.fused
    assert (site.attributes["axis"], site.attributes["last_axis"]) == (-3, -3)


@pytest.mark.parametrize("exporter", ["TorchScript", "dynamo 18"])
def test_trailing_norms_between_transposes_stay_trailing(exporter):
    (site,) = rx.optimize(export(Permuted(), exporter), prove=True).report.fused
    assert site.op == "RMSNorm"
    assert site.attributes == {}


@crossed(3, exporter=["dynamo 18", "TorchScript", "dynamo 23"], dim=[0, 2, (1, 2)])
def test_other_axes_are_look_alikes(dim, exporter):
    module = nn.Sequential(Weightless())
    module.forward = lambda x: x * torch.rsqrt(x.square().mean(dim, keepdim=True) + 1e-6)  # type: ignore[method-assign]
    report = rx.optimize(export(module, exporter)).report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [("axes-not-trailing", "look-alike")]


def test_without_a_scale_along_it_the_second_axis_of_three_may_be_tokens():
    report = rx.optimize(export(Weightless(), "dynamo 18", LINE)).report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [("axes-not-trailing", "look-alike")]


@pytest.mark.parametrize("target", ["portable", "ort", "onnx"])
def test_channels_of_single_pixels_are_a_row(target):
    """As after a pooling: every target can say it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B,4,1,1] x) => (float[B,4,1,1] y)
        <float two = {2}, float eps = {0.00001}, float[4,1,1] w = {1,2,3,4}>
        {
            square = Pow(x, two)
            mean = ReduceMean<axes = [1], keepdims = 1>(square)
            stabilised = Add(mean, eps)
            rms = Sqrt(stabilised)
            v = Div(x, rms)
            y = Mul(v, w)
        }""")
    result = rx.optimize(model, target=target, prove=True)
    assert [len(result.report.fused), len(result.model.graph)] == [1, 1]
    x = np.random.default_rng(0).standard_normal((3, 4, 1, 1)).astype(np.float32)
    source = ir.serde.deserialize_model(model)
    before, after = (run_onnxruntime(m, {"x": x})["y"] for m in (source, result.model))
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_a_gate_of_each_image_is_no_scale():
    class Modulated(Channels):
        def forward(self, x: Tensor) -> Tensor:
            return Weightless.forward(self, x) * x.mean((2, 3), keepdim=True)  # type: ignore[arg-type]

    (site,) = rx.optimize(export(Modulated(), "dynamo 18"), prove=True).report.fused
    assert "Mul" not in site.spelling.split()[-1:]


def test_what_cannot_be_combined_is_refused():
    for attributes in (
        {"axis": -3, "last_axis": -2},
        {"last_axis": 1},
        {"axis": -2, "last_axis": -2, "group_size": 4},
        {"axis": -3, "last_axis": -3, "association": 2},
    ):
        with pytest.raises(ValueError):
            NormSpec(**attributes)  # type: ignore[arg-type]

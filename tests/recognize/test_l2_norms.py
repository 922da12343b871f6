"""``x / max(||x||, e) * sqrt(n) * g``: the norm of x-transformers, vit-pytorch and others."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_row

import rmsnorm_export as rx
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.sample import crossed, sampled

N = 24
EXPORTERS = {"TorchScript": (False, 17), "dynamo 18": (True, 18), "dynamo 23": (True, 23)}


class Normalize(nn.Module):
    """The usual module: ``normed * scale * (gamma + offset)``."""

    def __init__(self, *, offset: float = 0.0, scale: float = N**0.5, dim: int = -1) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, N))
        self.scale, self.offset, self.dim = scale, offset, dim

    def forward(self, x: Tensor) -> Tensor:
        gamma = self.gamma + self.offset if self.offset else self.gamma
        return unit_row(x, dim=self.dim) * self.scale * gamma


class Simple(Normalize):
    """Without a weight; the first of its users multiplies it by a weight of each head."""

    def forward(self, x: Tensor) -> Tensor:
        return unit_row(x, dim=-1) * self.scale


class WeightFirst(Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return unit_row(x, dim=-1) * self.gamma * self.scale


class InFloat(Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return (unit_row(x.float(), dim=-1) * self.scale).to(x.dtype) * self.gamma


class MeanClamped(Normalize):
    """The mean square is clamped, not the length."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean.clamp_min(1e-6)) * self.gamma


def export(module: nn.Module, exporter: str, dtype: torch.dtype = torch.float32) -> onnx.ModelProto:
    dynamo, opset = EXPORTERS[exporter]
    x = torch.randn(2, 5, N, dtype=dtype)
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
    module=[Normalize(), Normalize(offset=1.0), Simple(), WeightFirst()],
    exporter=list(EXPORTERS),
)
def test_the_packages_spellings_are_found_and_proved(module, exporter):
    model = export(module, exporter)
    (site,) = rx.optimize(model, prove=True).report.fused
    assert site.op == "RMSNorm_epsilon_clamp"
    assert site.attributes == {"epsilon_clamp": 1}
    assert site.epsilon == pytest.approx(1e-12 / N**0.5, rel=1e-6)
    assert site.numerics == "reordered"
    assert any("Clip" in note for note in site.notes)
    (refusal,) = rx.optimize(model, target="ort", numerics="upcast").report.refused
    assert (refusal.reason, refusal.kind) == ("numerics", "norm")
    assert "unclamped" in refusal.hint
    for target in ("ort", "onnx"):
        (site,) = rx.optimize(model, target=target, numerics="unclamped", prove=True).report.fused
        assert site.numerics == "unclamped"
        assert "rows whose root mean square is between" in site.notes[-1]


@sampled("exporter", EXPORTERS, ("TorchScript", "dynamo 23"))
def test_in_float16_a_float32_row_cannot_overflow(exporter):
    model = export(InFloat(), exporter, torch.float16)
    (site,) = rx.optimize(model, numerics="exact", prove=True).report.fused
    assert (site.numerics, site.attributes) == ("exact", {"epsilon_clamp": 1})


@sampled("exporter", EXPORTERS, ("TorchScript", "dynamo 18"))
def test_a_clamp_of_the_mean_square_is_one_of_its_root(exporter):
    (site,) = rx.optimize(export(MeanClamped(), exporter), prove=True).report.fused
    assert site.epsilon == pytest.approx(1e-3)
    assert site.attributes == {"epsilon_clamp": 1}


class RootClamped(Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-6) * self.gamma


@pytest.mark.parametrize(("numerics", "stash"), [("reordered", TensorProto.FLOAT16), ("upcast", 1)])
def test_in_float32_the_squares_of_small_halves_are_other_numbers(numerics, stash):
    """Where a clamp drops a rounding besides, what is computed in float32 is no less upcast."""
    model = export(RootClamped(), "TorchScript", torch.float16)
    result = rx.optimize(model, numerics=numerics, prove=True)
    (site,) = result.report.fused
    assert site.numerics == numerics
    (node,) = result.model.graph
    assert node.attributes.get_int("stash_type") == stash
    x = np.full((2, 5, N), 1e-4, np.float16)  # of which the square is 0 in float16
    (name,) = (value.name for value in model.graph.input)
    (wanted,) = ReferenceEvaluator(model).run(None, {name: x})
    (found,) = ReferenceEvaluator(onnx.load_from_string(result.to_bytes())).run(None, {name: x})
    assert np.array_equal(wanted, found) == (numerics == "reordered")


@crossed(
    2,
    exporter=["TorchScript", "dynamo 18"],
    row=[
        lambda x: x * N**0.5 / x.norm(dim=-1, keepdim=True).clamp_min(1e-12),
        lambda x: N**0.5 * x * torch.rsqrt(x.square().sum(-1, keepdim=True) + N * 1e-5),
        lambda x: x * torch.rsqrt(torch.einsum("...d,...d->...", x, x)[..., None] / N + 1e-5),
    ],
)
def test_the_root_of_n_is_multiplied_first_and_einsum_adds_squares(row, exporter):
    class Norm(Normalize):
        def forward(self, x: Tensor) -> Tensor:
            return row(x) * self.gamma

    model = export(Norm(), exporter)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    assert len(result.model.graph) == 1
    assert site.numerics == ("exact" if "Einsum" in site.spelling else "reordered")


@pytest.mark.parametrize(
    "equation", ["bsd,bsd->bs", "...d,...d->...", "bsd,bsd->bd", "bsd,bse->bs"]
)
def test_an_einsum_over_another_axis_is_no_sum_of_a_row(equation):
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4,4,4] x) => (float[4,4,4] y)
        <float four = {{4}}, float eps = {{0.00001}}, int64[1] last = {{2}}>
        {{
            total = Einsum<equation = "{equation}">(x, x)
            kept = Unsqueeze(total, last)
            mean = Div(kept, four)
            stabilised = Add(mean, eps)
            rms = Sqrt(stabilised)
            y = Div(x, rms)
        }}"""
    report = rx.optimize(onnx.parser.parse_model(text), prove=True).report
    assert len(report.fused) == (equation in ("bsd,bsd->bs", "...d,...d->..."))


@crossed(2, exporter=["TorchScript", "dynamo 18"], scale=[(N + 1) ** 0.5, 3.0])
def test_another_count_is_another_operator(exporter, scale):
    model = export(Normalize(scale=scale), exporter)
    report = rx.optimize(model, numerics="unclamped").report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [("not-the-mean", "look-alike")]


def normalize(
    *, floor: str = "Max", bound: float | np.ndarray = 1e-12, root: float = N**0.5
) -> onnx.ModelProto:
    """The graph itself, rows and all of its steps open."""
    node = helper.make_node
    nodes = [
        node("ReduceL2", ["x"], ["length"], axes=[-1], keepdims=1),
        node(floor, ["length", "bound"], ["divisor"]),
        node("Div", ["x", "divisor"], ["unit"]),
        node("Mul", ["unit", "root"], ["normed"]),
        node("Mul", ["normed", "gamma"], ["y"]),
    ]
    constants = {"bound": bound, "root": root, "gamma": np.linspace(0.5, 1.5, N)}
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", N]) for name in "xy"
    )
    graph = helper.make_graph(
        nodes, "g", [x], [y],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows() -> np.ndarray:
    """Of every length: of zeros, far below the clamp, at it, above it."""
    lengths = [0.0, 1e-20, 1e-16, 0.5e-12, 0.999e-12, 1e-12, 1.001e-12, 2e-12, 1e-8, 1.0, 1e10]
    x = np.random.default_rng(0).standard_normal((len(lengths), N))
    x *= np.array(lengths)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32)


def run(result: Any, x: np.ndarray) -> np.ndarray:
    return run_onnxruntime(result.model, {"x": x})["y"]


@pytest.mark.parametrize("floor", ["Max", "Clip"])
def test_rows_at_the_clamp_are_as_they_were(floor):
    model = normalize(floor=floor)
    x = rows()
    want = run_onnxruntime(ir.serde.deserialize_model(model), {"x": x})["y"]
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    assert site.numerics == ("exact" if floor == "Max" else "reordered")
    np.testing.assert_allclose(run(result, x), want, rtol=1e-6, atol=0)
    assert run(result, x[:0]).shape == (0, N)


def test_unclamped_rows_differ_where_the_note_says_and_nowhere_else():
    model = normalize()
    x = rows()
    want = run(rx.optimize(model), x)
    for target in ("ort", "onnx"):
        result = rx.optimize(model, target=target, numerics="unclamped")
        got = run(result, x)
        assert not np.isnan(got).any()
        loss = 1 - np.linalg.norm(got, axis=1)[1:] / np.linalg.norm(want, axis=1)[1:]
        near = np.array([False, False, True, True, True, True, True, False, False, False])
        assert (loss[near] > 0.01).all()
        assert (loss < 0.2930).all()
        assert (np.abs(loss[~near]) < 1e-6).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"floor": "Min"}, "clamped"),
        ({"bound": np.full((2, 1), 1e-12)}, "clamped"),
        ({"bound": -1.0}, "clamped"),
        ({"root": 5.0}, "not-the-mean"),
        ({"root": -(N**0.5)}, "not-the-mean"),
    ],
)
def test_look_alikes(changes, reason):
    report = rx.optimize(normalize(**changes), numerics="unclamped").report
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [(reason, "look-alike")]


def test_without_the_factor_it_is_an_l2_norm():
    model = normalize()
    del model.graph.node[-2:]
    model.graph.node[-1].output[0] = "y"
    report = rx.optimize(model).report
    assert not report.fused
    assert [r.reason for r in report.refused] == ["not-the-mean"]


def test_what_cannot_be_combined_is_refused():
    with pytest.raises(ValueError, match="outside or a clamp"):
        NormSpec(epsilon_outside=True, epsilon_clamp=True)

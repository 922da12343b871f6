"""What other tools leave of norms is found, or told as a norm with the reason, and computes what it
did: optimizers, converters to half types and to other opsets, quantizers."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx_ir.passes import common as passes
from onnxruntime import InferenceSession, SessionOptions, quantization
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxscript import optimizer
from torch import Tensor
from torch.nn import functional

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session
from rmsnorm_export.torch.export.failure import collected

# Norms of PyTorch as other tools leave them: optimized, in half types, quantized, other opsets.

N, SHAPE = 64, (2, 5, 64)
EPSILON = 1e-5


def _mean(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def _grouped(x: Tensor, w: Tensor) -> Tensor:
    rows = x.view(*x.shape[:-1], 4, N // 4)
    return w * (rows * torch.rsqrt(_mean(rows) + EPSILON)).view(x.shape)


FORMULAS: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    lambda x, w: w * (x.float() * torch.rsqrt(_mean(x.float()) + EPSILON)).to(x.dtype),
    lambda x, w: x * torch.rsqrt(_mean(x) + EPSILON) * (1 + w),
    lambda x, w: w * (x / torch.sqrt(torch.mean(x * x, -1, True) + EPSILON)),
    lambda x, w: x * (_mean(x) + EPSILON) ** -0.5 * w,
    lambda x, w: x * torch.rsqrt(x.square().sum(-1, True) / x.shape[-1] + EPSILON) * w,
    lambda x, w: functional.normalize(x, dim=-1) * N**0.5 * w,
    lambda x, w: x / (x.norm(dim=-1, keepdim=True) * N**-0.5).clamp(min=1e-6) * w,
    lambda x, w: x / (torch.sqrt(_mean(x)) + EPSILON) * w,
    lambda x, w: x * (w * torch.rsqrt(_mean(x) + EPSILON)),
    _grouped,
)


class Norms(torch.nn.Module):
    """Every formula once, with a layer behind it and a sum around both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.rand(N) + 0.5 for _ in FORMULAS)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(N, N) for _ in FORMULAS)

    def forward(self, x: Tensor) -> Tensor:
        for norm, weight, layer in zip(FORMULAS, self.weights, self.layers, strict=True):
            x = x + torch.tanh(layer(norm(x, weight)))
        return x


class Alone(Norms):
    """Every formula once, of the same rows."""

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(FORMULAS, self.weights, strict=True)
        return torch.stack([norm(x, weight) for norm, weight in pairs])


def exported(path: pathlib.Path, norms: type[Norms] = Norms) -> None:
    """Write the norms as TorchScript's exporter does."""
    with collected(), torch.no_grad():
        torch.onnx.export(
            norms().eval(), (torch.zeros(SHAPE),), str(path), opset_version=17, dynamo=False,
            input_names=["x"], dynamic_axes={"x": {0: "batch", 1: "tokens"}},
        )  # fmt: skip


class _Rows(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        rows = np.random.default_rng(0).standard_normal((3, *SHAPE)).astype(np.float32)
        self._rows: Iterator[dict[str, Any]] = iter({"x": row} for row in rows)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


def _offline(source: str, target: str) -> None:
    options = SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = target, 4
    InferenceSession(source, options)


def _half(*blocked: str) -> Callable[[str, str], None]:
    def convert(source: str, target: str) -> None:
        options = {"op_block_list": list(blocked)} if blocked else {}
        model = convert_float_to_float16(onnx.load(source), keep_io_types=not blocked, **options)
        onnx.save(model, target)

    return convert


def _deduplicated(source: str, target: str) -> None:
    result = passes.CommonSubexpressionEliminationPass()(ir.load(source))
    ir.save(passes.LiftConstantsToInitializersPass()(result.model).model, target)


def _blocks(source: str, target: str) -> None:
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(target)


CONVERTERS: dict[str, Callable[[str, str], object]] = {
    "onnxruntime, optimized_model_filepath": _offline,
    "onnxruntime.transformers.float16": _half(),
    "onnxruntime.transformers.float16, means in float32": _half("ReduceMean", "ReduceL2"),
    "onnxruntime, quant_pre_process": quant_pre_process,
    "onnxruntime, quantize_dynamic": quantization.quantize_dynamic,
    "onnxruntime, quantize_static": lambda source, target: quantization.quantize_static(
        source, target, _Rows(), op_types_to_quantize=["MatMul"]
    ),
    "onnxruntime, quantize_static, all operators": lambda source, target: (
        quantization.quantize_static(source, target, _Rows())
    ),
    "onnxruntime, MatMulNBitsQuantizer": _blocks,
    "onnx.version_converter": lambda source, target: onnx.save(
        onnx.version_converter.convert_version(onnx.load(source), 21), target
    ),
    "onnx_ir.passes": _deduplicated,
    "onnxscript.optimizer": lambda source, target: onnx.save(
        optimizer.optimize(onnx.load(source)), target
    ),
}
"""Each takes the path of a model, and that of the one to write."""


QUANTIZED = "onnxruntime, quantize_static, all operators"
"""The steps of the norms, too: no operator repeats these roundings, and none is to."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("converted") / "norms.onnx"
    exported(path)
    return path


def outputs(model: bytes, size: float = 1.0) -> np.ndarray:
    session = load_session(model, threads=1)
    half = onnx.load_from_string(model).graph.input[0].type.tensor_type.elem_type == 10
    rows = size * np.random.default_rng(1).standard_normal(SHAPE)
    feeds = {"x": rows.astype(np.float16 if half else np.float32)}
    (output,) = run_session(session, feeds).values()
    return output.astype(np.float64)


@pytest.mark.export
@pytest.mark.parametrize("name", CONVERTERS)
def test_every_norm_is_found_or_told(name: str, source: pathlib.Path) -> None:
    path = source.with_name("converted.onnx")
    CONVERTERS[name](str(source), str(path))
    for numerics in ("reordered", "upcast"):
        result = rx.optimize(path, numerics=numerics)
        found = len(result.report.fused) + len(result.report.kept)
        told = [r.reason for r in result.report.refused]
        assert all(r.kind == "norm" for r in result.report.refused)
        assert found + len(told) == len(FORMULAS)
        assert set(told) <= ({"numerics"} if "float16" in name or name == QUANTIZED else set())
        assert found == len(FORMULAS) or numerics == "reordered"
        if name == QUANTIZED:
            continue  # below: it is to compute something else
        loose = 3e-2 if "float16" in name or "quantize" in name else 1e-4
        after, before = outputs(result.to_bytes()), outputs(path.read_bytes())
        np.testing.assert_allclose(after, before, rtol=loose, atol=loose)


@pytest.mark.export
def test_norms_that_are_no_longer_quantized_are_nearer_to_the_float_model(
    tmp_path: pathlib.Path,
) -> None:
    """Left out with permission alone, and proved. Rows of the calibrated size have the error of the
    quantized output, which is 8 bits in both files; a smaller or a larger row has less."""
    source, path = tmp_path / "source.onnx", tmp_path / "quantized.onnx"
    exported(source, Alone)
    CONVERTERS[QUANTIZED](str(source), str(path))
    assert not rx.optimize(path).report.fused
    result = rx.optimize(path, numerics="upcast", prove=True)
    shared = 1  # the first two differ in their scale
    assert [site.numerics for site in result.report.fused] == ["upcast"] * (len(FORMULAS) - shared)
    assert all("quantized" in " ".join(site.notes) for site in result.report.fused)
    for size, most in ((0.1, 0.1), (1.0, 1.01), (4.0, 0.2)):
        floats = outputs(source.read_bytes(), size)
        after, before = (
            np.square(outputs(model, size) - floats).mean((1, 2, 3))
            for model in (result.to_bytes(), path.read_bytes())
        )
        assert (after <= 1.01 * before).all()
        assert after.sum() < most * before.sum()

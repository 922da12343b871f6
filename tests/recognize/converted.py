"""Norms of PyTorch as other tools leave them: optimized, in half types, quantized, other opsets."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxruntime import InferenceSession, SessionOptions, quantization
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxscript import optimizer
from torch import Tensor
from torch.nn import functional

from rmsnorm_export.torch.export.failure import collected

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

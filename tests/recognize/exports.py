"""Norms written as PyTorch formulas, from three exporters."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import onnx
import torch
from torch import Tensor, nn

N = 24
EXPORTERS = {"TorchScript": (False, 17), "dynamo 18": (True, 18), "dynamo 23": (True, 23)}
Formula = Callable[[Tensor, nn.Module], Tensor]


class Norm(nn.Module):
    """``formula(x, self)``, with a weight and a bias of N features."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.formula = formula
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, N))
        self.bias = nn.Parameter(torch.linspace(-1, 1, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self)


def export(
    formula: Formula,
    exporter: str,
    shape: tuple[int, ...] = (2, 5, N),
    dtype: torch.dtype = torch.float32,
) -> onnx.ModelProto:
    """Return the model that an exporter makes of a formula."""
    dynamo, opset = EXPORTERS[exporter]
    module, x = Norm(formula).eval().to(dtype), torch.randn(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(module, (x,), dynamo=True, opset_version=opset)
            assert program is not None
            return program.model_proto
        target = io.BytesIO()
        torch.onnx.export(module, (x,), target, dynamo=False, opset_version=opset)
    return onnx.load_from_string(target.getvalue())

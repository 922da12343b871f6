"""Norms written as PyTorch formulas, from three exporters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from tests.tools.corpus.exporters import export_module

N = 24
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
    module, x = Norm(formula).eval().to(dtype), torch.randn(shape, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_module(module, (x,), path, exporter, dynamic_axes=())
        return onnx.load(path)

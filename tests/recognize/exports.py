"""Norms written as PyTorch formulas, from three exporters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from rmsnorm_export.torch.export.failure import collected
from toolbox.corpus import cache

N = 24
EXPORTERS: dict[str, dict[str, Any]] = {
    "dynamo18": {"dynamo": True, "opset_version": 18},
    "dynamo23-plain": {"dynamo": True, "opset_version": 23, "optimize": False},
    "torchscript17": {"dynamo": False, "opset_version": 17},
}
Formula = Callable[[Tensor, nn.Module], Tensor]


class Norm(nn.Module):
    """``formula(x, self)``, with a weight of N features."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.formula = formula
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self)


def export(formula: Formula, exporter: str, dtype: torch.dtype = torch.float32) -> onnx.ModelProto:
    """Return the model that an exporter makes of a formula, cached until its file is another."""

    def fill(folder: Path) -> None:
        module, x = Norm(formula).eval().to(dtype), torch.randn(2, 5, N, dtype=dtype)
        path = str(folder / "model.onnx")
        with collected():
            torch.onnx.export(module, (x,), path, input_names=["input0"], **EXPORTERS[exporter])

    sources = [Path(file).read_bytes() for file in (__file__, inspect.getfile(formula))]
    code, bound = formula.__code__, inspect.getclosurevars(formula).nonlocals
    own = (code.co_firstlineno, code.co_code, code.co_consts, bound)
    name = f"{formula.__name__.strip('<>')}-{exporter}"
    folder = cache.entry("formulas", name, f"{sources} {own} {dtype}", fill)
    return onnx.load(folder / "model.onnx")

"""What ``rx.export`` leaves of the exporter's scaffolding: constants are folded, weights kept."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

import torch

from rmsnorm_export.torch.export.export import export

pytestmark = pytest.mark.export


class Windowed(torch.nn.Module):
    """A causal mask from ranges and slices: much of it is constant when the length is."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(n, n)
        self.norm = torch.nn.RMSNorm(n)
        self.register_buffer("shift", torch.arange(float(n)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        near = (positions[:, :, None] - positions[:, None, :]).abs() < 3
        y = self.norm(self.proj(x) + self.shift)
        return torch.where(near[..., :1], y, torch.zeros_like(y))


def constant_nodes(model):
    """Nodes that compute with constants only, none of them a weight."""
    initializers = set(model.graph.initializers.values())
    return [
        node.op_type
        for node in model.graph
        if node.inputs
        and all(
            value is None or (value in initializers and value.name.startswith("val_"))
            for value in node.inputs
        )
    ]


def test_constants_are_folded_and_weights_are_kept(tmp_path):
    module = Windowed(16).eval()
    result = export(module, (torch.randn(2, 5, 16),), tmp_path / "m.onnx", opset=18)
    assert constant_nodes(result.model) == []
    names = set(result.model.graph.initializers)
    assert {name for name, _ in module.named_parameters()} | {"shift"} <= names
    # The mask is one constant: no range, comparison or slice is left of it.
    left = {node.op_type for node in result.model.graph}
    assert left.isdisjoint({"Range", "Sub", "Abs", "Less", "Slice"}), left

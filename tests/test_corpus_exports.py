"""The corpus itself: norms are counted by calls, and exports carry what PyTorch gave."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import onnx
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.tools.corpus import architectures, exporters, norm_classes


class _Calls(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice = LlamaRMSNorm(8)
        self.never = LlamaRMSNorm(8)
        self.torch = torch.nn.RMSNorm(8)
        self.other = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.torch(self.twice(self.other(self.twice(x))))
        return torch.nn.functional.rms_norm(x, (8,))


def test_calls_are_counted_not_modules() -> None:
    function = torch.nn.functional.rms_norm
    counted = architectures.count_norms(_Calls(), (torch.ones(2, 8),))
    assert counted == {"LlamaRMSNorm": 2, "RMSNorm": 1, "rms_norm": 1}
    assert torch.nn.functional.rms_norm is function


@pytest.mark.parametrize(("name", "norms"), [("llama", 5), ("gemma3", 13), ("cohere", 0)])
def test_architecture_is_the_same_every_time(name: str, norms: int) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, inputs = architectures.architecture(name).make()
    assert torch.equal(torch.get_rng_state(), state)
    second, _ = architectures.architecture(name).make()
    with torch.no_grad():
        a, b = first(*inputs), second(*inputs)
    assert torch.equal(a, b)
    assert a.isfinite().all()
    assert a.std() > 0.01
    assert sum(architectures.count_norms(first, inputs).values()) == norms


def test_torchscript_export_holds_inputs_and_outputs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path))
    norm = next(n for n in norm_classes.norm_classes() if n.key == "LlamaRMSNorm")
    export = exporters.export_norm(norm, "bfloat16", "torchscript17")
    assert export.reason == ""
    assert export.dynamic
    assert export.path is not None
    graph = onnx.load(export.path).graph
    shape = graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in shape] == ["batch", "sequence", ""]
    (x,) = export.inputs()
    (y,) = export.outputs()
    assert x.dtype.name == y.dtype.name == "bfloat16"
    module, args = norm.make("bfloat16")
    with torch.no_grad():
        want = module(*args).float().numpy()
    assert np.array_equal(y.astype(np.float32), want)


def test_what_an_exporter_cannot_do_is_an_entry(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = next(n for n in norm_classes.norm_classes() if n.key == "RMSNorm")
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path))
    export = exporters.export_norm(norm, "float32", "torchscript17")
    assert export.path is None
    assert "aten::rms_norm" in export.reason
    assert len(export.inputs()) == len(export.outputs()) == 1

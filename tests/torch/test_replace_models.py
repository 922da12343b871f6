"""Replacing the norms of whole architectures: every one that is called, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import torch

from rmsnorm_export.torch.probe.replace import replace_norms
from tests.tools.corpus.architectures import architecture
from tests.tools.corpus.norm_classes import norm_classes

NORM_CLASSES = {m for norm in norm_classes(rmsnorm_only=True) for m in norm.members}

# Each for norms that the others lack: gates, groups, offsets, weightless, gain in front, bias-free
# encoders, a tensor without effect (falcon_mamba).
BITWISE = ["llama", "qwen3_next", "gemma", "mamba2", "falcon_h1", "falcon_mamba", "t5_encoder"]
BITWISE += ["kimi_linear", "muse_spark", "imagegpt", "llama4"]

# x / rms and x * rsqrt(...) round to different neighbours here once or twice, and the model's other
# operators carry that on.
NEARLY = ["gemma2", "aimv2_vision"]


def norms_of(model: torch.nn.Module) -> list[str]:
    return [
        path
        for path, module in model.named_modules()
        if f"{type(module).__module__}.{type(module).__qualname__}" in NORM_CLASSES
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", BITWISE + NEARLY)
def test_a_whole_model(name: str, dtype: str) -> None:
    model, inputs = architecture(name).make(dtype)
    norms = norms_of(model)
    keys = list(model.state_dict())
    with torch.no_grad():
        before = model(*inputs)
    with replace_norms(model) as replacement:
        assert [r.path for r in replacement.replaced] == norms
        assert list(model.state_dict()) == keys
        with torch.no_grad():
            during = model(*inputs)
    with torch.no_grad():
        assert torch.equal(model(*inputs), before)
    apart = float((during.double() - before.double()).abs().max() / before.double().abs().max())
    if dtype == "float32":
        assert apart <= 5e-6  # 2 ** -23 per norm, through ten to twenty of them
    elif name in BITWISE:
        assert torch.equal(during, before)
    else:
        assert apart <= 4 * torch.finfo(before.dtype).eps

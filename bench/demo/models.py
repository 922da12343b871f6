"""Five architectures of the transformers package with random weights, and their export to ONNX.

Four layers of width 256: large enough to have every kind of norm of the real model, small enough to
be exported in seconds. The gains are random as well, since a gain of ones would hide a lost weight.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from rmsnorm_export.torch.export.failure import collected

VOCAB, SEQUENCE, OPSET = 1000, 64, 18
_COMMON = {"vocab_size": VOCAB, "hidden_size": 256, "use_cache": False}
_ATTENTION = {
    "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 512, "attn_implementation": "eager",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One model of the demo.

    Attributes:
        name: what it is called.
        model_type: as transformers calls it.
        settings: of its configuration, over those that all share.
        norms: what its norms are.
        dtype: of its weights.
    """

    name: str
    model_type: str
    settings: dict[str, Any]
    norms: str = ""
    dtype: str = "float32"

    def build(self, layers: int = 4) -> Any:
        """The causal language model, with random weights."""
        settings = {**_COMMON, "num_hidden_layers": layers, **self.settings}
        config = transformers.AutoConfig.for_model(self.model_type, **settings)
        model = transformers.AutoModelForCausalLM.from_config(config)
        return model.to(getattr(torch, self.dtype)).eval()


_PER_HEAD = {**_ATTENTION, "head_dim": 32}
_MAMBA2 = {"num_heads": 16, "head_dim": 32, "state_size": 32, "n_groups": 2, "chunk_size": 32}
_FALCON_H1 = {
    **_PER_HEAD, "mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_ssm": 512, "mamba_d_state": 32,
    "mamba_n_groups": 2, "mamba_chunk_size": 32, "mamba_rms_norm": True,
}  # fmt: skip
ARCHITECTURES = (
    Architecture("LLaMA", "llama", _ATTENTION, "gain after the cast, residual sums"),
    Architecture(
        "Qwen3 f16", "qwen3", _PER_HEAD, "as LLaMA, and a norm per head; half precision", "float16"
    ),
    Architecture(
        "Gemma-3", "gemma3_text", {**_PER_HEAD, "sliding_window": 32},
        "gain 1 + w before the cast, also behind the block, per head",
    ),
    Architecture("Mamba-2", "mamba2", _MAMBA2, "gated by silu(z) in front of the norm, in groups"),
    Architecture("Falcon-H1", "falcon_h1", _FALCON_H1, "in groups, a gain for each, then gated"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """An exported model with what PyTorch itself computed.

    Attributes:
        module: what was exported.
        path: the ONNX file.
        tokens: int64 [1, SEQUENCE].
        logits: of PyTorch, [1, SEQUENCE, VOCAB].
        norm_calls: calls of RMSNorm modules in one forward pass.
    """

    module: torch.nn.Module
    path: Path
    tokens: np.ndarray
    logits: np.ndarray
    norm_calls: int


class _Logits(torch.nn.Module):
    """Tokens to logits, the one signature that all architectures share."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits  # type: ignore[no-any-return]


def export(architecture: Architecture, folder: Path, layers: int = 4) -> Exported:
    """Build, run and export one architecture into ``folder``."""
    torch.manual_seed(0)
    with collected():
        model = _Logits(architecture.build(layers))
        norms = [one for one in model.modules() if "RMSNorm" in type(one).__name__]
        calls: list[object] = []
        for norm in norms:
            for gain in norm.parameters(recurse=False):
                gain.data += 0.2 * torch.randn_like(gain)
        tokens = torch.randint(0, VOCAB, (1, SEQUENCE))
        hooks = [norm.register_forward_hook(lambda *_: calls.append(1)) for norm in norms]
        with torch.no_grad():
            logits = model(tokens)
        for hook in hooks:
            hook.remove()
        program = torch.onnx.export(
            model, (tokens,), dynamo=True, opset_version=OPSET, verbose=False
        )
        path = folder / f"{architecture.name.lower().replace(' ', '_')}.onnx"
        assert program is not None
        program.save(path)
    # NumPy has no bfloat16.
    kept = logits.float() if logits.dtype == torch.bfloat16 else logits
    return Exported(model, path, tokens.numpy(), kept.numpy(), len(calls))

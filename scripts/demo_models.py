"""Five architectures of the transformers package with random weights, and their export to ONNX.

Four layers of width 256: large enough to have every kind of norm of the real model, small enough to
be exported in seconds. The gains are random as well, since a gain of ones would hide a lost weight.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCAB, SEQUENCE, OPSET = 1000, 64, 18
_COMMON = {"vocab_size": VOCAB, "hidden_size": 256, "num_hidden_layers": 4, "use_cache": False}
_ATTENTION = {
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
}


def _llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_COMMON, **_ATTENTION))


def _qwen3() -> Any:
    config = transformers.Qwen3Config(**_COMMON, **_ATTENTION, head_dim=32)
    return transformers.Qwen3ForCausalLM(config)


def _gemma3() -> Any:
    config = transformers.Gemma3TextConfig(**_COMMON, **_ATTENTION, head_dim=32, sliding_window=32)
    return transformers.Gemma3ForCausalLM(config)


def _mamba2() -> Any:
    config = transformers.Mamba2Config(
        **_COMMON, num_heads=16, head_dim=32, state_size=32, n_groups=2, chunk_size=32
    )
    return transformers.Mamba2ForCausalLM(config)


def _falcon_h1() -> Any:
    config = transformers.FalconH1Config(
        **_COMMON,
        **_ATTENTION,
        head_dim=32,
        mamba_n_heads=16,
        mamba_d_head=32,
        mamba_d_ssm=512,
        mamba_d_state=32,
        mamba_n_groups=2,
        mamba_chunk_size=32,
        mamba_rms_norm=True,
    )
    return transformers.FalconH1ForCausalLM(config)


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One model of the demo: what it is called, how it is built, what its norms are."""

    name: str
    build: Callable[[], Any]
    norms: str
    dtype: torch.dtype = torch.float32


ARCHITECTURES = (
    Architecture("LLaMA", _llama, "gain after the cast, residual sums"),
    Architecture("Qwen3 f16", _qwen3, "as LLaMA, and a norm per head; half precision", torch.half),
    Architecture("Gemma-3", _gemma3, "gain 1 + w before the cast, also behind the block, per head"),
    Architecture("Mamba-2", _mamba2, "gated by silu(z) in front of the norm, in groups"),
    Architecture("Falcon-H1", _falcon_h1, "in groups, a gain for each, then gated"),
)


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


def _is_norm(module: torch.nn.Module) -> bool:
    return "RMSNorm" in type(module).__name__


def _randomise_gains(model: torch.nn.Module) -> None:
    for module in model.modules():
        if _is_norm(module):
            for gain in module.parameters(recurse=False):
                gain.data += 0.2 * torch.randn_like(gain)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress lines and its notes on optional packages."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def export(architecture: Architecture, folder: Path) -> Exported:
    """Build, run and export one architecture into ``folder``."""
    torch.manual_seed(0)
    with _quiet():
        inner = architecture.build().to(architecture.dtype).eval()
        _randomise_gains(inner)
        model = _Logits(inner)
        tokens = torch.randint(0, VOCAB, (1, SEQUENCE))
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        hooks = [
            module.register_forward_hook(count) for module in inner.modules() if _is_norm(module)
        ]
        with torch.no_grad():
            logits = model(tokens).numpy()
        for hook in hooks:
            hook.remove()
        program = torch.onnx.export(
            model, (tokens,), dynamo=True, opset_version=OPSET, verbose=False
        )
        path = folder / f"{architecture.name.lower().replace(' ', '_')}.onnx"
        assert program is not None
        program.save(path)
    return Exported(model, path, tokens.numpy(), logits, calls)

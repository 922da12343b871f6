"""Language models of ``litgpt``."""

from __future__ import annotations

import functools

import torch

from tests.tools.corpus.packages.table import Made, Model

_LIKE = {
    "llama": "Llama-3-8B",
    "gemma-2": "Gemma-2-2b",
    "gemma-3": "Gemma-3-1b-it",
    "qwen3": "Qwen3-0.6B",
    "olmo-2": "OLMo-2-1124-7B",
    "phi-3": "Phi-3-mini-4k-instruct",
}


def models() -> tuple[Model, ...]:
    return tuple(Model(name, functools.partial(_make, name), dynamic=(0, 1)) for name in _LIKE)


def _make(name: str) -> Made:
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config.from_name(
        _LIKE[name],
        block_size=32,
        vocab_size=101,
        padded_vocab_size=104,
        n_layer=2,
        n_head=4,
        n_query_groups=2 if name not in ("phi-3",) else 4,
        n_embd=64,
        head_size=16,
        intermediate_size=96,
    )
    return GPT(config), {"idx": torch.randint(3, 64, (2, 7))}

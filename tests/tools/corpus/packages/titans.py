"""The memory layers of ``titans-pytorch``."""

from __future__ import annotations

import torch

from tests.tools.corpus.packages.table import Made, Model


def models() -> tuple[Model, ...]:
    return (Model("mac", _mac, dynamic=(0, 1)),)


def _mac() -> Made:
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=101, dim=32, depth=2, segment_len=8, heads=2, dim_head=16,
        num_persist_mem_tokens=2, num_longterm_mem_tokens=2, neural_memory_layers=(),
    )  # fmt: skip
    return model, {"x": torch.randint(3, 64, (2, 16))}

"""Decoders and encoders of ``x-transformers``: its norm divides by a clamped length of the row."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.tools.corpus.packages.table import Made, Model

_WAYS: dict[str, dict[str, Any]] = {
    "rmsnorm": {"use_rmsnorm": True},
    "rmsnorm-offset": {"use_rmsnorm": True, "norm_add_unit_offset": True},
    "simple": {"use_simple_rmsnorm": True, "ff_glu": True},
    "sandwich": {"use_rmsnorm": True, "sandwich_norm": True, "rotary_pos_emb": True},
    "qk-norm": {"use_rmsnorm": True, "attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "post-norm": {"use_rmsnorm": True, "pre_norm": False, "attn_kv_heads": 1},
}


def models() -> tuple[Model, ...]:
    return tuple(Model(name, functools.partial(_make, way), light=True, dynamic=(0, 1))
                 for name, way in _WAYS.items())  # fmt: skip


def _make(way: dict[str, Any]) -> Made:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **way)
    model = TransformerWrapper(num_tokens=101, max_seq_len=32, attn_layers=layers)
    return model, {"x": torch.randint(3, 64, (2, 7))}

"""Image models of ``vit-pytorch``: its norms divide by a clamped length of the row."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from tests.tools.corpus.packages.table import Made, Model

_SMALL = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 64, "depth": 2}
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "simple-vit-qk": (
        "simple_vit_with_qk_norm", "SimpleViT",
        {**_SMALL, "heads": 2, "mlp_dim": 96, "dim_head": 32},
    ),
    "vit-5": ("vit_5", "ViT", {**_SMALL, "heads": 2, "mlp_dim": 96, "dim_head": 32}),
}  # fmt: skip


def models() -> tuple[Model, ...]:
    return tuple(Model(name, functools.partial(_make, name)) for name in _MODELS)


def _make(name: str) -> Made:
    module, cls, settings = _MODELS[name]
    model = getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**settings)
    return model, {"img": torch.randn(2, 3, 32, 32)}

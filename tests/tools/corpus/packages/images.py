"""Image models of ``timm``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.tools.corpus.packages.table import Made, Model

_SMALL = {"depth": 2, "num_heads": 2, "embed_dim": 64, "img_size": 32, "patch_size": 8}
_STAGES = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 40)}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit-rms": ("VisionTransformer", {**_SMALL, "norm_layer": "rmsnorm"}),
    "vit-rms-qk": ("VisionTransformer", {**_SMALL, "norm_layer": "rmsnorm", "qk_norm": True}),
    "vit-rms-fp32": ("VisionTransformer", {**_SMALL, "norm_layer": "rmsnormfp32"}),
    "eva-rms": ("Eva", {**_SMALL, "norm_layer": "rmsnorm", "use_rot_pos_emb": True}),
    "convnext-rms2d": ("ConvNeXt", {**_STAGES, "norm_layer": "rmsnorm2d", "conv_mlp": True}),
    "convnext-simple": ("ConvNeXt", {**_STAGES, "norm_layer": "simplenorm"}),
}


def models() -> tuple[Model, ...]:
    return tuple(Model(name, functools.partial(_make, name)) for name in _MODELS)


def _make(name: str) -> Made:
    import timm.layers
    import timm.models

    cls, settings = _MODELS[name]
    settings = dict(settings)
    settings["norm_layer"] = timm.layers.get_norm_layer(settings["norm_layer"])
    if cls == "ConvNeXt":
        settings["norm_layer"] = _MODELS[name][1]["norm_layer"]
    model = getattr(timm.models, cls)(num_classes=10, **settings)
    return model, {"x": torch.randn(2, 3, 32, 32)}

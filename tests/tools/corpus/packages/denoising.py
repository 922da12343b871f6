"""U-Nets of ``denoising-diffusion-pytorch``: L2 norms over channels of rank 3 and 4."""

from __future__ import annotations

import functools

import torch

from tests.tools.corpus.packages.table import Made, Model


def models() -> tuple[Model, ...]:
    shapes = {"Unet": (2, 3, 16, 16), "Unet1D": (2, 4, 16)}
    return tuple(Model(name, functools.partial(_make, name, shape), dynamic=())
                 for name, shape in shapes.items())  # fmt: skip


def _make(name: str, shape: tuple[int, ...]) -> Made:
    import denoising_diffusion_pytorch

    model = getattr(denoising_diffusion_pytorch, name)(dim=16, dim_mults=(1, 2), channels=shape[1])
    return model, {"x": torch.randn(shape), "time": torch.tensor([3, 5])}

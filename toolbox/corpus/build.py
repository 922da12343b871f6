"""Make a norm module from its class alone: arguments from the signature, random weights.

Everything is seeded, so the same class gives the same numbers in every run and process.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch

WIDTH = 48
"""Elements in a row: not a power of two, and divisible by GROUP."""

GROUP = 16

_SIZES = (
    "hidden_size", "dim", "size", "channels", "num_channels", "d_model", "c_in", "n",
    "normalized_shape", "embed_dim", "feat_size", "hidden_dim", "num_features",
)  # fmt: skip
_CONFIG = {"hidden_size": WIDTH, "head_dim": WIDTH, "num_key_value_heads": 3}
_VALUES: dict[str, Any] = {
    **dict.fromkeys(_SIZES, WIDTH),
    **dict.fromkeys(("num_groups", "n_groups", "num_heads", "n_heads"), WIDTH // GROUP),
    **dict.fromkeys(("group_size", "head_dim", "head_size"), GROUP),
    "feature_dims": (4,),
}


def build(
    path: str, *, dtype: torch.dtype, eps: float, overrides: Mapping[str, Any]
) -> torch.nn.Module:
    """Return a module with random weights, in evaluation mode, converted to ``dtype``.

    Args:
        path: of the class; its arguments are guessed from the names of its parameters.
        dtype: of the weights.
        eps: value for every parameter that is an epsilon.
        overrides: arguments that win over the guess.

    Raises:
        TypeError: an argument of the class is not known here.
        ImportError, AttributeError: no such class.
    """
    module, _, name = path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(cls).parameters
    config = types.SimpleNamespace(**_CONFIG, eps=eps, rms_norm_eps=eps)
    values = {**_VALUES, "config": config, **{key: eps for key in parameters if "eps" in key}}
    guessed = {key: values[key] for key in parameters if key in values}
    instance = cls(**{**guessed, **overrides})
    randomise(instance, seed=0)
    return instance.to(dtype).eval()


def randomise(module: torch.nn.Module, *, seed: int) -> None:
    """Every parameter and floating buffer from a seeded distribution far from zeros and ones.

    Gains lie in +-[0.25, 1.75], so that a dropped, squared or shifted gain shows; buffers (running
    statistics) are positive, since a variance among them has to be.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            value = torch.rand(parameter.shape, generator=generator) * 1.5 + 0.25
            sign = torch.where(torch.rand(parameter.shape, generator=generator) < 0.2, -1.0, 1.0)
            parameter.copy_((value * sign).to(parameter.dtype))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)


def example_inputs(
    shape: tuple[int, ...], count: int, *, dtype: torch.dtype = torch.float32, seed: int = 1
) -> tuple[torch.Tensor, ...]:
    """``count`` normal tensors of ``shape``; the rows of the first have scales from 0.02 to 20."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) for _ in range(count)]
    rows = torch.Size(shape[:-1]).numel()
    scales = torch.logspace(-1.7, 1.3, rows).reshape(*shape[:-1], 1)
    tensors[0] = tensors[0] * scales
    return tuple(t.to(dtype) for t in tensors)

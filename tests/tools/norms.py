"""Norm modules from their classes alone, and their exports, kept in the cache.

Arguments follow from the signature, weights are random and seeded: the same class gives the same
numbers in every run and process.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from toolbox.corpus.exporters import EXPORTERS, Example, Export, cached
from toolbox.corpus.norm_classes import NormClass, norm_classes
from toolbox.corpus.weights import DTYPES, randomise

EPSILON = 1e-5
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


def make(norm: NormClass, dtype: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a module with random weights and its example inputs.

    Args:
        norm: its class.
        dtype: of ``DTYPES``, for weights and inputs.

    Raises:
        TypeError: an argument of the class is not known here.
        ImportError, AttributeError: no such class.
    """
    module, _, name = norm.path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(cls).parameters
    config = types.SimpleNamespace(**_CONFIG, eps=EPSILON, rms_norm_eps=EPSILON)
    values = {**_VALUES, "config": config, **{key: EPSILON for key in parameters if "eps" in key}}
    guessed = {key: values[key] for key in parameters if key in values}
    instance = cls(**{**guessed, **norm.arguments})
    randomise(instance, seed=0)
    inputs = example_inputs(norm.shape, len(norm.inputs), dtype=DTYPES[dtype])
    return instance.to(DTYPES[dtype]).eval(), inputs


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


def combinations(norm: NormClass) -> list[tuple[str, str]]:
    """Return the (type, exporter) pairs in which ``norm`` is in the corpus.

    An RMSNorm is there in all; the other norms, which hold none, in fewer: they cost the same time.
    """
    if norm.is_rmsnorm:
        return list(itertools.product(DTYPES, EXPORTERS))
    return list(itertools.product(("float32", "float16"), ("dynamo18", "torchscript17")))


def norm_exports(only: str = "") -> Iterator[Export]:
    """Yield every norm class by every exporter, RMSNorm or not.

    Args:
        only: a piece of the key (``LlamaRMSNorm-float16-dynamo18``) that has to be in it.
    """
    for norm in norm_classes():
        for dtype, exporter in combinations(norm):
            if only in f"{norm.key}-{dtype}-{exporter}":
                yield export_norm(norm, dtype, exporter)


def export_norm(norm: NormClass, dtype: str, exporter: str) -> Export:
    """Return one entry; batch and sequence are symbolic where the exporter can."""
    key = f"{norm.key}-{dtype}-{exporter}"

    def example() -> Example:
        module, inputs = make(norm, dtype)
        named = {f"input{i}": tensor for i, tensor in enumerate(inputs)}
        return module, named, int(norm.is_rmsnorm)

    depends = f"{norm} {Path(__file__).read_text(encoding='utf-8')}"
    return cached("norms", key, depends, example, [(exporter, (0, 1)), (exporter, ())])

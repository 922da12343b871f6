"""A model that generates, and the inputs that it is traced with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import short
from rmsnorm_export.torch.dtypes import FLOATS
from rmsnorm_export.torch.generation.components import check_generative
from rmsnorm_export.torch.source.example import example_of
from rmsnorm_export.torch.source.huggingface import (
    explained,
    model_class,
    model_settings,
    offline,
)
from rmsnorm_export.torch.source.load import load
from rmsnorm_export.torch.source.settings import CONFIG, GENERATION_CONFIG, read_settings
from rmsnorm_export.torch_options import SourceOptions


def load_generative(
    source: str, options: SourceOptions, *, seed: int
) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Return a model of transformers with its cache switched on, inputs of ``generate``, and notes.

    Args:
        source: as for ``load``.
        options: how it is loaded; without shapes two rows of five tokens are made later.
        seed: of random inputs.

    Raises:
        UsageError, InputError, BackendMissingError: as ``load`` and ``example_of``; and where the
            source gives no model of transformers that generates.
    """
    loaded = load(source, options)
    model: Any = loaded.module
    check_generative(model)
    # For one graph without cache these were switched off, and attention spelled out.
    model.config.use_cache = True
    if model.generation_config is not None:
        model.generation_config.use_cache = True
    model.set_attn_implementation("sdpa")
    inputs: dict[str, Any] = {}
    if options.shapes or loaded.kwargs:
        inputs = example_of(loaded, options.shapes, seed=seed).kwargs
    return model, inputs, loaded.notes


def load_frame(folder: Path, architecture: str, dtype: str) -> Any:
    """Return the model that an export was made of, without weights: for its ``generate`` alone.

    Args:
        folder: of the export, with the model's configs.
        architecture: name of the model's class in transformers.
        dtype: of the export.

    Raises:
        InputError: there is no such class, or the configs cannot be read.
    """
    from transformers import GenerationConfig

    path = folder / CONFIG
    settings, generation = model_settings(path), read_settings(folder / GENERATION_CONFIG)
    config, kind = model_class(path, settings | {"architectures": [architecture]})
    if kind.__name__ != architecture or dtype not in FLOATS:
        raise InputError(
            "The folder does not say which model it was exported from.",
            found=f"{folder}: {short(architecture)} in {short(dtype)}",
            fix="export the model again, or give the model in place of the folder",
        )
    with offline(), explained(path, "The model cannot be made from its config."):
        config.use_cache = True
        with torch.device("meta"):
            model = kind(config).to(getattr(torch, dtype)).eval()
        model.set_attn_implementation("sdpa")
        if generation is not None:
            model.generation_config = GenerationConfig.from_dict(generation)
    on_cpu = {"device": property(lambda _: torch.device("cpu"))}
    model.__class__ = type(architecture, (type(model),), on_cpu)
    return model

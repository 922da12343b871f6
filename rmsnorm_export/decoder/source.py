"""A model that generates, and the inputs that it is traced with."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.decoder.components import check_generative
from rmsnorm_export.torch.source.example import example_of
from rmsnorm_export.torch.source.load import load
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
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # it, or a part of it, has none
        model.set_attn_implementation("eager")
    inputs: dict[str, Any] = {}
    if options.shapes or loaded.kwargs:
        inputs = example_of(loaded, options.shapes, seed=seed).kwargs
    return model, inputs, loaded.notes

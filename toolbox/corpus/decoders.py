"""Tiny models that generate, with random weights: the architectures whose export is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from toolbox.corpus.tables import tables

DECODERS = tables(Path(__file__).with_suffix(".toml"))
"""By the name of the configuration: what is set beside the sizes that models of text share."""
_SIZES = DECODERS.pop("sizes")
_MODELS = (
    transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
)


def decoder(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The model, always with the same weights.

    Args:
        kind: of `DECODERS`.
        dtype: of the weights.
        changes: of its configuration.
    """
    torch.manual_seed(5)
    settings = {"model_type": kind, **DECODERS[kind], **changes}
    shared = {"image_token_id": 63} if "vision_config" in settings else _SIZES
    config = transformers.AutoConfig.for_model(**{**shared, **settings})
    model = next(kinds[type(config)] for kinds in _MODELS if type(config) in kinds)
    return model(config).to(dtype).eval()

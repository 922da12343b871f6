"""Inputs of ``generate`` that a model is traced with, where its source gives none."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.decoder.encoders import takes_grids
from rmsnorm_export.errors import InputError

TEXT = {"input_ids", "attention_mask", "position_ids", "token_type_ids"}
"""Inputs of a model that reads alone."""


def sample_inputs(model: Any, feeds: Mapping[str, Any], *, part: str = "whole") -> dict[str, Any]:
    """Return inputs of ``generate``, with an attention mask that pads on the left.

    A mask of ones alone is dropped while tracing, and the graph would take no padded batch. A scan
    in chunks is traced with several of them, or the graph would take no more than one. An
    encoder-decoder begins with two tokens: with its start alone, the length of its cache would be
    fixed.

    Args:
        model: of transformers.
        feeds: inputs by name; those that are missing are drawn with the seed 0: ``input_ids`` of
            shape [batch, sequence], an image in each row of a model that sees, the sound of one
            that hears alone.
        part: ``language-model``: images and sound are left out.

    Raises:
        InputError: the model sees or hears, and the sizes of such inputs are not known.
    """
    inputs = dict(feeds)
    seq2seq, modalities = model.config.is_encoder_decoder, model.input_modalities
    modalities = {modalities} if isinstance(modalities, str) else {*modalities}
    if not hasattr(model.config, "vision_config"):  # a class of text says what its family takes
        modalities &= {"text", "audio"} if model.config.sub_configs else {"text"}
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "input_features" and "input_features" not in inputs:
        inputs["input_features"] = _audio_features(model, generator)
    elif "input_ids" not in inputs and model.main_input_name == "input_ids":
        limit = model.get_input_embeddings().num_embeddings
        length = max(5, 2 * chunk_size(model) + 1)
        inputs["input_ids"] = torch.randint(0, limit, (2, length), generator=generator)
        if part == "whole" and "image" in modalities and not seq2seq:
            inputs |= _with_images(model, inputs["input_ids"], generator)
    if part == "whole" and modalities - {"text"} and not seq2seq and not inputs.keys() - TEXT:
        raise _not_known(model, f"inputs: {', '.join(inputs)}")
    ids = inputs.get("input_ids")
    if ids is not None and "attention_mask" not in inputs:
        mask = torch.ones_like(ids)
        mask[0, 0] = 0
        inputs["attention_mask"] = mask
    if seq2seq and "decoder_input_ids" not in inputs:
        start = model.generation_config.decoder_start_token_id
        start = model.generation_config.bos_token_id if start is None else start
        rows = len(inputs[model.main_input_name])
        begin = torch.full((rows, 1), 0 if start is None else start)
        second = begin if ids is None else ids[:, -1:]
        inputs["decoder_input_ids"] = torch.cat([begin, second], dim=1)
    return inputs


def chunk_size(model: Any) -> int:
    """Return how many tokens a scan of the model takes at a time; 0 without one in chunks."""
    names = "chunk_size", "mamba_chunk_size"
    return max(getattr(model.config, name, None) or 0 for name in names)


def written_name(model: Any) -> str:
    """Return the input of ``generate`` with the tokens that the model continues."""
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


def greedy(model: Any, static_cache: int | None) -> Any:
    """Return settings of ``generate`` for greedy tokens; the cache grows where it has no size."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.use_cache = False, 1, True
    if static_cache is not None:
        config.cache_implementation, config.max_cache_len = "static", static_cache
    return config


def positions_of(model: Any) -> int | None:
    """Return for how many tokens a model has positions; None: it does not say."""
    most: int | None
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return most


def _not_known(model: Any, found: str) -> InputError:
    return InputError(
        "The inputs with which this model sees or hears are not known.",
        found=f"{type(model).__name__}, {found}",
        fix="give those of its processor (export_generation(..., inputs=), or a factory), or use "
        "--part language-model to export what takes text alone",
    )


def _audio_features(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Return features of two sounds as long as the encoder has positions behind its strides."""
    bins = getattr(model.config, "num_mel_bins", None)
    positions = getattr(model.config, "max_source_positions", None)
    if bins is None or positions is None:
        raise _not_known(model, "whose config lacks num_mel_bins or max_source_positions")
    convolutions = (m for m in model.get_encoder().modules() if isinstance(m, torch.nn.Conv1d))
    frames = positions * math.prod(module.stride[0] for module in convolutions)
    return torch.randn(2, bins, frames, generator=generator).to(model.dtype)


def _with_images(
    model: Any, ids: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return an image for each row of ``ids``, which go on behind as many tokens as it takes."""
    token = getattr(model.config, "image_token_id", None)
    features = getattr(model.base_model, "get_image_features", None)
    if token is None or features is None:
        raise _not_known(model, "whose config has no image_token_id")
    ids = ids.where(ids != token, 0)
    for images in _images(model, features, len(ids), generator):
        with contextlib.suppress(Exception), torch.no_grad():
            rows = pytree.tree_leaves(features(**images, return_dict=True).pooler_output)
            count = sum(row.shape[:-1].numel() for row in rows) // len(ids)
            seen = torch.full((len(ids), count), token)
            images["input_ids"] = torch.cat([ids[:, :2], seen, ids[:, 2:]], dim=1)
            kinds = {"token_type_ids", "mm_token_type_ids"}
            taken = kinds & inspect.signature(model.forward).parameters.keys()
            return images | dict.fromkeys(taken, (images["input_ids"] == token).long())
    raise _not_known(model, "which takes no images of the sizes in its config")


def _images(
    model: Any, features: Callable[..., Any], count: int, generator: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield images that a model may take: patches with grids; or one, or several, to a row."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(model.dtype)

    vision = model.config.vision_config
    if takes_grids(features):
        patches = next(m for m in model.modules() if isinstance(m, torch.nn.Conv3d))
        in_window = getattr(vision, "window_size", 0) // vision.patch_size
        side = 2 * max(vision.spatial_merge_size, in_window)
        grids = torch.tensor([[1, side, side]] * count)
        pixels = drawn(count * side**2, patches.weight[0].numel())
        yield {"pixel_values": pixels, "image_grid_thw": grids}
    elif isinstance(size := getattr(vision, "image_size", None), int):
        asked = inspect.signature(features).parameters.get("image_sizes")
        sizes = {"image_sizes": torch.full((count, 2), size)}
        others = sizes if asked and asked.default is asked.empty else {}
        square = getattr(vision, "num_channels", 3), size, size
        yield {"pixel_values": drawn(count, *square), **others}
        yield {"pixel_values": drawn(count, 1, *square), **others}

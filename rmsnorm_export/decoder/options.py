"""The options of ``export_generation``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from rmsnorm_export.options import MOST_INT32, only_api, option
from rmsnorm_export.torch_options import WrittenOptions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(WrittenOptions):
    """The options of ``export_generation``, and of the command with ``--task generation``."""

    multi_token: bool = option(
        False,
        help="One graph that takes any number of tokens and a cache, empty at first, instead of "
        "prefill and decode.",
    )
    static_cache: Annotated[int, Meta(ge=2, le=MOST_INT32)] | None = option(
        None, metavar="N", help="A cache of fixed size for N tokens instead of one that grows."
    )
    names: Literal["transformers", "optimum", "genai"] = option(
        "transformers",
        help="Names of inputs and outputs, and whose runtime loads the folder. transformers: its "
        "ExportedModel; optimum: past_key_values.0.key and present.0.key, which servers know, too, "
        "in one graph (--multi-token), or three of an encoder and its decoder; genai: the same for "
        "onnxruntime-genai, with its genai_config.json, and with --fusions a cache in one buffer "
        "where attention allows it.",
    )
    part: Literal["whole", "language-model"] = option(
        "whole",
        help="Of a model that sees or hears: all of it, its encoders as graphs of their own where "
        "generate runs them first, or what continues text without images and sound.",
    )
    inputs: Mapping[str, Any] | None = only_api(
        None,
        help="Inputs of ``model.generate`` by name; without them ``input_ids`` of two rows of five "
        "tokens, one padded on the left, and an image in each for a model that sees.",
    )

"""The options of ``export``.

They stand outside the package ``torch``, which loads PyTorch; ``--help`` does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.options import MOST_INT32, Count, Options, only_api, option
from rmsnorm_export.rewrite.options import RewriteOptions

TRUST_HELP = (
    "Load a .pt2 file, which can run code: only one that you or people you trust have made."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenOptions(RewriteOptions):
    opset: Count | None = option(
        None,
        metavar="N",
        help="Opset of the file, 18 to 24.",
        shown="PyTorch's choice; 23 for the target onnx",
    )
    force: bool = only_api(False, help="Replace what an earlier export wrote there.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(_WrittenOptions):
    """The options of ``export``; ``weights`` and ``force`` are those of the written file."""

    kwargs: Mapping[str, Any] | None = only_api(None, help="Example inputs by name.")
    dynamic_shapes: Any = only_api(
        None, help="As for torch.export.export; a string names a dynamic dimension."
    )
    input_names: Sequence[str] | None = only_api(
        None,
        help="Names of the inputs, those of starred arguments and dictionaries included; by "
        "default the names of the parameters of ``forward``.",
    )
    output_names: Sequence[str] | None = only_api(
        None,
        help="Names of the outputs; by default the keys of what ``forward`` returns, or output, "
        "output_1.",
    )
    weights: Literal["auto", "embed"] = option(
        "auto",
        help="auto: weights over 2 GiB go to a file OUT.data; embed: all in OUT, or an error.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(_WrittenOptions):
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Options):
    """Loading of a PyTorch source, by the command ``export`` and the table [export]."""

    arguments: Mapping[str, Any] | None = option(None, cli=False, help="Arguments of the factory.")
    shapes: str | None = option(
        None,
        metavar='"NAME=TYPE[SIZES];..."',
        help="Inputs: names, types, sizes; a named size is dynamic, from 1 or within LOW..HIGH. "
        "Needed unless the source has example inputs.",
    )
    dtype: FloatName | None = option(
        None,
        written=str,
        read=float_name,
        metavar="[f32|f16|bf16]",
        help="Type of the weights; fp16, float16, half and the like are read, too.",
        shown="as the source has it; f32 for random weights",
    )
    trust_source: bool = option(False, help=TRUST_HELP)

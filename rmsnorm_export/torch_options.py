"""The options of ``export``.

They stand outside the package ``torch``, which loads PyTorch; ``--help`` does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.options import Count, Options, only_api, option
from rmsnorm_export.rewrite.options import RewriteOptions

TRUST_HELP = (
    "Load a .pt2 file, which can run code: only one that you or people you trust have made."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOptions(RewriteOptions):
    """The options of every export."""

    opset: Count | None = option(
        None,
        metavar="N",
        help="Opset of the file, 18 to 24.",
        shown="PyTorch's choice; 23 for the target onnx",
    )
    force: bool = only_api(False, help="Replace what an earlier export wrote there.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(WrittenOptions):
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

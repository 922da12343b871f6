"""The options of ``verify``."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.compare.backends import backend_choices
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import Bound, Count, Options, Progress, Seed, option, progress_option
from rmsnorm_export.runtime.sizes import ONE_POINT, Dims, Inputs, Shapes, dims_option, shapes_option
from rmsnorm_export.torch_options import TRUST_HELP

_BACKENDS = (
    "auto: torch for a PyTorch source, for an engine its own, else onnxruntime, on the CPU; "
    "onnxruntime-native: with the kernels of plugin build --runtime onnxruntime."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(Options):
    """The options of ``verify``, of the command and of the table [verify]."""

    inputs: Inputs | None = option(
        None,
        file=True,
        metavar="FILE.npz",
        help="Arrays to feed, by input name; without it random ones, or the example inputs of a "
        "PyTorch model.",
    )
    shapes: Shapes | None = shapes_option(
        ONE_POINT,
        metavar='"NAME=1x16;..."',
        help="Shapes of single random inputs; may be repeated. Symbolic sizes are small otherwise, "
        "and the inputs of an engine have the usual shape of its profile.",
    )
    dims: Dims | None = dims_option(ONE_POINT)
    seed: Seed = option(0, cli=False, help="Of the random inputs.")
    rtol: Bound | None = option(
        None,
        help="Largest difference, relative to the largest element of the output.",
        shown="1e-9 for float64, 1e-4 float32 (1e-2 where it is computed by way of TF32), 1e-2 "
        "float16, 4e-2 bfloat16, else 0; 0 with --atol",
    )
    atol: Bound | None = option(None, help="Largest absolute difference, added to that of --rtol.")
    backend_a: str = option(
        "auto", choices=backend_choices, toml=False, help=f"What runs A. {_BACKENDS}"
    )
    backend_b: str = option(
        "auto", choices=backend_choices, toml=False, help=f"What runs B. {_BACKENDS}"
    )
    trust_source: bool = option(False, toml=False, help=TRUST_HELP)
    generate: Count | None = option(
        None,
        metavar="N",
        toml=False,
        help="Compare N greedy tokens, and the logits of each, of the model A of transformers with "
        "the folder B that export --task generation made of it.",
    )
    progress: Progress | None = progress_option()

    def agree(self) -> None:
        if (self.inputs is not None or self.generate) and (self.shapes or self.dims):
            found = f"shapes with {'generate' if self.generate else 'inputs'}"
            fix = "omit one of them; generate takes the inputs of generate() as inputs"
            raise UsageError("Shapes are for random inputs of single graphs.", found=found, fix=fix)

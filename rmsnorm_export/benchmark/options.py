"""The options of ``bench``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from rmsnorm_export.errors import UsageError
from rmsnorm_export.lower import targets
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.options import Options, Progress, Seconds, Seed, option, progress_option
from rmsnorm_export.rewrite.options import NUMERICS_HELP
from rmsnorm_export.runtime.sizes import POINTS, Dims, Shapes, dims_option, shapes_option

Provider = Literal["cpu", "cuda"]

TARGETS: tuple[Target, ...] = tuple(
    name for name, row in targets.TARGETS.items() if row.form == "one node"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Options):
    """The options of ``bench``, of the command and of the table [bench]."""

    targets: Sequence[Target] = option(
        TARGETS, flag="--target", help="Targets to measure: portable, onnx, ort."
    )
    providers: Sequence[Provider] | None = option(
        None,
        flag="--provider",
        help="Execution providers: cpu, cuda.",
        shown="all that this ONNX Runtime has",
    )
    native: bool = option(
        False,
        help="Measure the portable file with the kernels for ONNX Runtime, too; plugin build "
        "--runtime onnxruntime makes them for the CPU, and with --cuda for CUDA.",
    )
    shapes: Shapes | None = shapes_option(
        POINTS,
        metavar='"NAME=SHAPE,...;..."',
        help='Shapes to measure, e.g. "ids=1x16,1x128,4x128"; the n-th shapes of all inputs belong '
        "together.",
        shown="1x16, 1x128 and 4x128 for a batch and a length",
    )
    dims: Dims | None = dims_option(POINTS)
    seconds: Seconds = option(
        5.0,
        metavar="S",
        help="Seconds for each shape on each provider; at least 20 rounds are made.",
    )
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = option(
        None, metavar="N", help="Threads of every session.", shown="one per core"
    )
    numerics: Numerics = option("reordered", toml=False, help=NUMERICS_HELP)
    seed: Seed = option(0, cli=False, help="Of the random inputs and of the order within a round.")
    progress: Progress | None = progress_option()

    def agree(self) -> None:
        if not self.targets or self.providers == ():
            what = "There is nothing to compare raw with, or nowhere."
            fix = "name some with --target and --provider"
            raise UsageError(what, found="no target, or no provider", fix=fix)
        if self.native and "portable" not in self.targets:
            what = "The kernels for ONNX Runtime run what portable writes."
            fix = "name portable among them, or omit native"
            raise UsageError(what, found=f"targets {', '.join(self.targets)}", fix=fix)

"""The options of ``optimize`` and ``inspect``, and those that ``export`` shares with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from rmsnorm_export.errors import RequirementError, UsageError
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.options import Count, Options, Progress, Seed, only_api, option, progress_option
from rmsnorm_export.printable import plural
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.runtime.consumers import Consumer, by_name, consumer

NUMERICS_HELP = (
    "Loosest change of rounding allowed. exact: the same rounding steps; reordered: one rounding "
    "of a half type moved or dropped, or the scale multiplied in another order; upcast: half sums "
    "become float32 sums; unclamped: rows near an epsilon that was a bound change."
)
CONSTANT_HELP = (
    "Initializers that are graph inputs as well, as all were before IR version 4, are constants, "
    "and no inputs any more. Without it a caller may replace an epsilon among them."
)
FusionProvider = Literal["cpu", "cuda", "webgpu", "dml"]
DRAWINGS_HELP = "Keep the nodes of the sites, before and after, for a report that draws them."


def _requirement(value: int | str) -> int | Literal["all"]:
    """Read ``all``, or a number from 1.

    Raises:
        UsageError: neither.
    """
    if value == "all":
        return "all"
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise UsageError(
        "The requirement cannot be read.", found=repr(value), fix="give a number from 1, or all"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requirement(Options):
    """Number of norms that must become one node for the result to be written."""

    require: Literal["all"] | int | None = option(
        None,
        written=int | str,
        read=_requirement,
        metavar="N|all",
        help="Fail with exit code 5, and write nothing, unless N norms are one node; all: unless "
        "there is a norm and none was refused (look-alikes do not count).",
    )

    def unmet(self, report: Report, *, name: str = "") -> RequirementError | None:
        """Return the error of a report that does not meet it; None where it does.

        Args:
            report: of the model.
            name: of the model, where there are several.
        """
        fused, refused = len(report.fused) + len(report.kept), report.unfused
        met = fused > 0 and not refused if self.require == "all" else fused >= (self.require or 0)
        if met or self.require is None:
            return None
        reasons = ", ".join(dict.fromkeys(refusal.reason for refusal in refused))
        verb = "is" if fused == 1 else "are"
        counts = f"{name}: " if name else ""
        counts += f"{plural(fused, 'norm')} {'can be' if report.planned else verb} one node"
        counts += f", {len(refused)} refused"
        counts += f" ({reasons})" if reasons else ""
        if alike := report.look_alikes:
            counts += f"; {plural(len(alike), 'look-alike')}, no RMSNorm, left alone"
        fix = "check that this is the right model, or omit --require"
        if refused:
            fix = "see the hints of the refusals in the report, or lower --require"
        consequence = "" if report.planned else "; nothing was written"
        what = f"--require {self.require} is not met{consequence}."
        return RequirementError(what, found=counts, fix=fix)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions(Options):
    """Storage of the weights of a model that ``optimize`` writes."""

    weights: WeightsPolicy = option("auto", help="What happens to weights in external files.")


def _known_runtime(text: str) -> str:
    consumer(text)
    return text.strip().lower()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions(Options):
    """Options that ``optimize`` and ``export`` share."""

    target: Target | None = option(
        None,
        choices=lambda: tuple(TARGETS),
        help="; ".join(f"{row.name}: {row.summary}" for row in TARGETS.values()) + ".",
        shown="portable, or what --for chooses",
    )
    runtime: str | None = option(
        None,
        flag="--for",
        metavar="RUNTIME[@VERSION]",
        read=_known_runtime,
        help="Write what this runtime runs best, from a table of measured facts: target, spelling, "
        "format version. A model that it cannot run is refused. One of "
        f"{', '.join(by_name())}.",
    )
    numerics: Numerics = option("reordered", help=NUMERICS_HELP)
    prove: bool = option(
        False,
        help="Run every site before and after on hard inputs. A site that fails keeps its nodes, "
        "the output is written, and the exit code is 4.",
    )
    seed: Seed = option(
        0, cli=False, help="Of the random inputs of the proofs, and of export --verify."
    )
    kernels: str | None = option(
        None,
        toml=False,
        metavar="LIBRARY",
        help="Prove the new nodes by these kernels, too, as ONNX Runtime runs them: the library of "
        "plugin build --runtime onnxruntime. bfloat16 is run in the runtime so.",
    )
    fusions: FusionProvider | None = option(
        None,
        help="Then run transformers' fusions for this provider of ONNX Runtime: attention with its "
        "cache, rotary embeddings, mixtures of experts. The target is ort. The outputs are "
        "compared; where they change, the graph stays as it was.",
    )
    progress: Progress | None = progress_option()
    drawings: bool = only_api(False, help=DRAWINGS_HELP)

    def agree(self) -> None:
        if self.kernels is not None and not self.prove:
            raise UsageError(
                "Kernels are of use to a proof only.",
                found=f"--kernels {self.kernels} without --prove",
                fix="add --prove, or omit --kernels",
            )
        if self.fusions is not None and self.target is None and self.runtime is None:
            object.__setattr__(self, "target", "ort")
        if self.fusions is not None and self.form != "ort":
            raise UsageError(
                "The fusions write operators that ONNX Runtime alone has.",
                found=f"--fusions {self.fusions} with the target {self.form}",
                fix="use --target ort, or omit --fusions",
            )

    @property
    def consumer(self) -> Consumer | None:
        """Return the facts about the runtime; None without one."""
        return None if self.runtime is None else consumer(self.runtime)

    @property
    def form(self) -> Target:
        """Return the target asked for, or that of the runtime, or the portable one."""
        runtime = self.consumer
        return self.target or ("portable" if runtime is None else runtime.target)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions(RewriteOptions):
    """The options of ``optimize``, of the command and of the table [optimize]."""

    opset: Count | None = option(
        None,
        metavar="N",
        help="Raise the model to this opset; without it, only as far as the target needs.",
    )
    sites: Sequence[str] = option(
        (),
        flag="--site",
        metavar="NAME",
        help="With the target plain: write out only norms of this name, in which * stands for "
        "anything; what is plain already stays. May be repeated.",
    )
    fold_residual: bool = option(
        True,
        cli=False,
        help="Keep the Add in front of a norm apart, where the target could take it in.",
    )
    fold_gate: bool = option(
        True,
        cli=False,
        help="Keep the SiLU or sigmoid gate of a norm apart, where the target could take it in.",
    )
    fold_quantize: bool = option(
        False,
        help="Take what makes int8 or FP8 codes of a norm into its node, where the target can say "
        "it: for the plugin, whose node is a kernel of its own.",
    )
    fold_rotary: bool | None = option(
        None,
        cli=False,
        help="Take the rotary embedding behind a norm per head (QK norm) into its node, where the "
        "target can say it: for the plugin, whose node is a kernel of its own.",
        shown="with --for tensorrt or tensorrt-rtx",
    )
    constant_initializers: bool = option(False, help=CONSTANT_HELP)

    def agree(self) -> None:
        RewriteOptions.agree(self)
        if self.sites and self.form != "plain":
            raise UsageError(
                "Single sites are for the target plain.",
                found=f"--site {self.sites[0]} with the target {self.form}",
                fix="use --target plain, or omit --site",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions(Options):
    """The options of ``inspect``."""

    target: Target | None = option(
        None,
        choices=lambda: tuple(TARGETS),
        help="Say what this target can express; without it, what is an RMSNorm at all.",
    )
    numerics: Numerics = option("reordered", help=NUMERICS_HELP)
    constant_initializers: bool = option(False, help=CONSTANT_HELP)
    drawings: bool = only_api(False, help=DRAWINGS_HELP)

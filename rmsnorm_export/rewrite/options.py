"""The options of ``optimize`` and ``inspect``, and those that ``export`` shares with them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import msgspec

from rmsnorm_export.errors import RequirementError, UsageError
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.options import (
    Bound,
    Count,
    FilePath,
    Options,
    Progress,
    Seed,
    option,
    progress_option,
)
from rmsnorm_export.precision.result import Half
from rmsnorm_export.printable import plural
from rmsnorm_export.quantize.result import Quantize
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.runtime.consumers import BY_NAME, ENGINES, Consumer, consumer
from rmsnorm_export.runtime.sizes import ONE_POINT, Dims, Inputs, Shapes, dims_option, shapes_option
from rmsnorm_export.system.packages import require_package

NUMERICS_HELP = (
    "Loosest change of rounding allowed. exact: the same steps; reordered: one rounding of a half "
    "type moved or dropped, or the scale multiplied in another order; upcast: half or quantized "
    "sums become float32 sums; unclamped: a floor of the root mean square becomes an epsilon, "
    "which changes rows near it."
)
FusionProvider = Literal["cpu", "cuda", "webgpu", "dml"]
_QUANTIZERS = ("onnxruntime.quantization.matmul_nbits_quantizer", "onnxscript")
"""Modules that a quantization runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requirement(Options):
    """Number of norms that must become one node for the result to be written."""

    require: Literal["all"] | Count | None = option(
        None,
        written=int | str,
        read=functools.partial(msgspec.convert, type=Literal["all"] | Count, strict=False),
        metavar="N|all",
        help="Fail with exit code 5, and write no model, unless N norms are one node; all: unless "
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
        verb, consequence = ("can be", "") if report.planned else ("are", "; nothing was written")
        counts = f"{plural(fused, 'norm')} {verb} one node, {len(refused)} refused"
        if reasons := ", ".join(dict.fromkeys(refusal.reason for refusal in refused)):
            counts += f" ({reasons})"
        if alike := report.look_alikes:
            counts += f"; {plural(len(alike), 'look-alike')}, no RMSNorm, left alone"
        fix = "see the reasons in the report, check the model, or omit --require"
        if not (refused or alike):
            fix = "nothing else was found that looks like a norm: check the model, or require less"
        what = f"--require {self.require} is not met{consequence}."
        return RequirementError(what, found=f"{name}: {counts}" if name else counts, fix=fix)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions(Options):
    """Storage of the weights of a model that ``optimize`` writes."""

    weights: WeightsPolicy = option("auto", help="What happens to weights in external files.")


def _known_runtime(text: str) -> str:
    consumer(text)
    return text.strip().lower()


def _is_runtime(name: str) -> str:
    """Say of a target that there is not that it is a runtime, for which --for chooses one."""
    runtime = name.partition("@")[0].strip().lower()
    if runtime not in BY_NAME and runtime not in ENGINES:
        return ""
    return f"{runtime} is a runtime: use --for {runtime}, which chooses the target; or "


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions(Options):
    """The options of ``inspect``."""

    target: Target | None = option(
        None,
        choices=lambda: tuple(TARGETS),
        meant=_is_runtime,
        help="List the norms that this target can express; without it, all RMSNorms.",
    )
    numerics: Numerics = option("reordered", help=NUMERICS_HELP)
    runtime: str | None = option(
        None,
        flag="--for",
        metavar="RUNTIME[@VERSION]",
        read=_known_runtime,
        help="Choose what this runtime runs best, by measured facts: target and format version. A "
        f"model that it cannot run is refused. One of {', '.join(BY_NAME)}.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions(InspectOptions):
    """The options of ``inspect`` alone."""

    health: bool = option(
        False, help="Say what norms, sums and products survive in half precision; runs the model."
    )
    inputs: Inputs | None = option(
        None, file=True, metavar="FILE.npz", help="Arrays to run it on; without it random ones."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions(InspectOptions):
    """Options that ``optimize`` and ``export`` share."""

    target: Target | None = option(
        None,
        choices=lambda: tuple(TARGETS),
        meant=_is_runtime,
        help="; ".join(f"{name}: {row.summary}" for name, row in TARGETS.items()) + ".",
        shown="portable, or what --for chooses",
    )
    prove: bool = option(
        False,
        help="Run every site before and after on hard inputs. A site that fails keeps its nodes, "
        "the output is written, and the report says so (exit code 4).",
    )
    seed: Seed = option(
        0, cli=False, help="Of the random inputs of the proofs, and of export --verify."
    )
    kernels: str | None = option(
        None,
        toml=False,
        metavar="LIBRARY",
        help="Prove the new nodes by these kernels, too, as ONNX Runtime runs them: the library of "
        "plugin build --runtime onnxruntime. So bfloat16, too, is run in the runtime.",
    )
    fusions: FusionProvider | None = option(
        None,
        help="Then run transformers' fusions (attention, rotary embeddings, mixtures of experts) "
        "for this provider of ONNX Runtime. The target is ort. Where outputs change, it is undone.",
    )
    quantize: Quantize | None = option(
        None,
        help="Then store the weights of products in blocks of 4 or 8 bits (MatMulNBits), an "
        "embedding that shares them, too. Weights that are such blocks already, as of a GGUF, keep "
        "their values. The target is ort. Too much is lost (exit code 4) where the perplexity of a "
        "decoder with a tokenizer is over 1.1 times, for int8 1.02; else where outputs are off by "
        "more than 0.5, for int8 0.1, of their largest element.",
    )
    calibrate: FilePath | None = option(
        None,
        metavar="FILE.txt",
        help="Text on which the loss of --quantize is measured.",
        shown="a page of the package",
    )
    progress: Progress | None = progress_option()

    def agree(self) -> None:
        if self.kernels is not None and not self.prove:
            found = f"--kernels {self.kernels} without --prove"
            fix = "add --prove, or omit --kernels"
            raise UsageError("Kernels are of use to a proof only.", found=found, fix=fix)
        if self.calibrate is not None and self.quantize is None:
            found, fix = f"--calibrate {self.calibrate} alone", "add --quantize, or omit it"
            raise UsageError("A text is of use to a quantization only.", found=found, fix=fix)
        if self.quantize is not None:
            for module in _QUANTIZERS:
                require_package(module, f"--quantize {self.quantize}", "[quantize]")
        if self.fusions is not None:  # which run beside the graph as it was
            require_package("onnxruntime", f"--fusions {self.fusions}", "[ort]")
        for name in ("fusions", "quantize"):
            value = getattr(self, name)
            if value is not None and self.target is None and self.runtime is None:
                object.__setattr__(self, "target", "ort")
            if value is not None and self.form != "ort":
                what = f"With --{name} the graph has operators that ONNX Runtime alone has."
                found = f"--{name} {value} with the target {self.form}"
                raise UsageError(what, found=found, fix=f"use --target ort, or omit --{name}")

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
        help="Opset of the result: the model is raised or lowered to it. With --for a model of a "
        "newer opset than the runtime loads is lowered as well.",
        shown="that of the model, or the least that the target needs",
    )
    sites: Sequence[str] = option(
        (),
        flag="--site",
        metavar="NAME",
        help="With the target plain: write out only norms of this name (* matches anything). With "
        "--numerics upcast or unclamped: allow that only for these. May be repeated.",
    )
    epsilon: Bound | None = option(
        None,
        metavar="NUMBER",
        help="With --numerics upcast: give this epsilon to half precision norms that have none, or "
        "whose type holds theirs as 0; with --site to these.",
    )
    fold_residual: bool = option(
        True,
        cli=False,
        help="Take the residual Add before a norm into its node, where the target can.",
    )
    fold_quantize: bool = option(
        False,
        help="Take the quantizer after a norm, to int8 or FP8, into its node: for the plugin.",
    )
    fold_rotary: bool | None = option(
        None,
        cli=False,
        help="Take the rotary embedding after a norm per head (QK norm) into its node: for the "
        "plugin.",
        shown="with --for tensorrt or tensorrt-rtx",
    )
    dtype: Half | None = option(
        None,
        help="Then convert the model to this type. It is run in float32, and what exceeds the type "
        "there stays float32, as softmax and losses do; inputs and outputs keep their type. Of a "
        "model in this type already what overflows becomes float32.",
    )
    half_io: bool = option(
        False, help="With --dtype: inputs and outputs, caches, too, have that type as well."
    )
    inputs: Sequence[Inputs] = option(
        (),
        file=True,
        metavar="FILE.npz",
        help="Arrays to run it on for --dtype; may be repeated. Without it random ones.",
    )
    shapes: Shapes | None = shapes_option(
        ONE_POINT, metavar='"NAME=1x16;..."', help="Shapes of single random inputs for --dtype."
    )
    dims: Dims | None = dims_option(ONE_POINT)

    def agree(self) -> None:
        RewriteOptions.agree(self)
        if self.dtype is None and (self.half_io or self.inputs or self.shapes or self.dims):
            found, fix = "no --dtype", "add --dtype f16 or bf16, or omit what is for it"
            what = "Types of the interface, inputs and sizes are for a conversion only."
            raise UsageError(what, found=found, fix=fix)
        if self.inputs and (self.shapes or self.dims):
            what, fix = "Shapes are for random inputs.", "omit --inputs, or --shapes and --dims"
            raise UsageError(what, found="shapes with inputs", fix=fix)
        least = TARGETS[self.form].min_opset
        if self.opset is not None and self.opset < least:
            found, fix = f"opset {self.opset}", f"give {least} or more, or choose another target"
            what = f"The opset is too low for the target {self.form}."
            raise UsageError(what, found=found, fix=fix)
        if self.sites and self.form != "plain" and self.numerics not in ("upcast", "unclamped"):
            found = f"--site {self.sites[0]} with the target {self.form}, numerics {self.numerics}"
            fix = "use --target plain or --numerics upcast, or omit --site"
            what = "Single sites are for the target plain, or for looser numerics."
            raise UsageError(what, found=found, fix=fix)
        exact = self.form == "plain" or self.numerics not in ("upcast", "unclamped")
        if self.epsilon is not None and (exact or self.prove or not self.epsilon):
            also = " --prove" if self.prove else ""
            found = f"--epsilon {self.epsilon}, target {self.form}, numerics {self.numerics}{also}"
            fix = "give it with --numerics upcast, a target of one node and without --prove"
            what = "With --epsilon a norm computes other numbers than its source."
            raise UsageError(what, found=found, fix=fix)

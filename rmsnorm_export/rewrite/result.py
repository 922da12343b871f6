"""Results of ``optimize`` and ``inspect``: reports of plain values, and models not written yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.health.result import Health, HealthRun
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.precision.result import Precision
from rmsnorm_export.printable import plural
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.quantize.result import Quantization
from rmsnorm_export.recognize.refusal import Refusal, RefusalKind
from rmsnorm_export.runtime.consumers import RunsIn
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.shown import Shown

if TYPE_CHECKING:
    import onnx_ir as ir

    from rmsnorm_export.graph.policy import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult

_NEIGHBOURS: tuple[tuple[RefusalKind, str, str], ...] = (
    ("residual", "residual", "residual"),
    ("quantizer", "quantized", "quantized output"),
    ("rotary", "rotary", "rotary embedding"),
)
"""The parts that the node of a norm may hold: kind, field of ``Site``, and its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One RMSNorm that is (or already was) one node.

    Attributes:
        name: name of the new node.
        op: operator type of the new node.
        nodes: names of the nodes that it replaces (op types where a node has no name).
        spelling: op types of those nodes in order, e.g. ``Pow ReduceMean Add Sqrt Div Mul``.
        numerics: class of the rewrite (see docs/reference/numerics.md).
        dtype: element type of the input, e.g. ``float16``.
        n: elements in a row; None when the file does not say.
        epsilon: as the source has it.
        scope: ``main`` or the function or subgraph that holds the site.
        attributes: attributes other than epsilon that differ from the ordinary LLaMA norm.
        notes: for the user, about this site.
        proof: outcome of the proof, if one was asked for.
        module: path of the PyTorch module it came from, where the exporter wrote it down.
        residual: whether the residual sum before it is in the node.
        quantized: whether the quantizer after it is in the node.
        rotary: whether the rotary embedding after it is in the node.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    spelling: str
    numerics: Numerics
    dtype: str
    n: int | None
    epsilon: float
    scope: str
    attributes: dict[str, int | float | str]
    notes: tuple[str, ...] = ()
    proof: Proof | None = None
    module: str | None = None
    residual: bool = False
    quantized: bool = False
    rotary: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Fusions:
    """Effect of transformers' fusions for one provider of ONNX Runtime, after the norms were fused.

    Attributes:
        provider: ``cpu``, ``cuda``, ``webgpu`` or ``dml``.
        operators: how many nodes there were before and after, of operators that are new in the
            graph, and of norms and products of matrices.
        nodes: how many there were of any operator, before and after.
        norms: norms that attention nodes compute themselves now (of queries and keys).
        residuals: residual sums that are in the node of their norm now, and were not before.
        left_out: ``rotary embeddings in attention nodes``, ``all of them``, or "".
        problem: why it was undone, or "".
        apart: the layers whose attention is no node of its own, by the reason.
        one_row: several tokens after a cache are taken for one row alone.
        compared: how the outputs compare with those of the graph before, or "".
        not_compared: why they were not, or "".
    """

    provider: str
    operators: dict[str, tuple[int, int]]
    nodes: tuple[int, int]
    norms: int
    residuals: int
    left_out: str = ""
    problem: str = ""
    apart: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    one_row: bool = False
    compared: str = ""
    not_compared: str = ""

    def summary(self) -> str:
        """One line, e.g. ``fusions for cpu: 2 GroupQueryAttention, MatMul 19 to 9, ...``."""
        changes = [
            f"{after} {name}" if not before else f"{name} {before} to {after}"
            for name, (before, after) in self.operators.items()
        ]
        before, after = self.nodes
        folded = "" if before == after else f", and constants folded: {before:,} to {after:,} nodes"
        return f"fusions for {self.provider}: {', '.join(changes) or f'nothing fused{folded}'}"

    def undone(self) -> str:
        """Return that nothing was fused, and why; "" where it was, or was not to be."""
        nothing = self.problem and not self.operators
        return f"{self.summary()}: {self.problem}" if nothing else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Loading:
    """A session of the whole file, which a proof of it includes.

    Attributes:
        runtime: e.g. ``onnxruntime 1.31.1 (CPU)``; "" where no session was tried.
        problem: why it does not load there, or "".
        perhaps: it was not known to have every operator, or read weights of other files, so that a
            problem need not be one of the file.
        not_loaded: of what nothing is known, half a sentence, or "".
        before, after: of the source and the result, how many nodes a session executes by its
            default optimization, and how many norms as one kernel; None: they were not counted.
        bytes: of the source, where that is known, and the result, with their weights; about.
    """

    runtime: str
    problem: str = ""
    perhaps: bool = False
    not_loaded: str = ""
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    bytes: tuple[int | None, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """Outcome of ``inspect`` or ``optimize`` on one model.

    Attributes:
        source: path of the model, or a description of where it came from.
        target: the target asked for; None for ``inspect`` without one.
        numerics: loosest class allowed.
        fused: sites that became (``inspect``: would become) one node.
        kept: norms that already were in the target's form.
        refused: look-alikes, and norms that the target cannot express, with the reason.
        opset_before, opset_after: version of the default ONNX domain.
        nodes_before, nodes_after: nodes in the model, subgraphs and functions included, but not the
            bodies of this package's own operators.
        functions: own operators that the result defines by a function (target ``portable``).
        unfolded: residual sums, quantizers and rotary embeddings that are not in the node of their
            norm, with the reason.
        runs_in: for each runtime of the table, whether it runs the file, by its norms, opset,
            format and operators, as far as these were tried.
        fusions: those of transformers, where they were asked for.
        notes: changes of the model as a whole (opset raised, weights policy, ...).
        seconds: wall-clock time of recognising and rewriting.
        quantized: by ONNX Runtime's quantizer, where that was asked for.
        precision: the conversion to a half type, where that was asked for.
        planned: nothing was changed (``inspect``).
        health: limits of each norm and residual sum in half precision, where asked for.
        health_runs: of the model, in which ranges were measured for it.
        loading: whether the installed ONNX Runtime loads the result, where proofs were asked for.
        runtime: for which it was made, where one was named.
    """

    source: str
    target: Target | None
    numerics: Numerics
    fused: tuple[Site, ...]
    kept: tuple[Site, ...]
    refused: tuple[Refusal, ...]
    opset_before: int
    opset_after: int
    nodes_before: int
    nodes_after: int
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    functions: int = 0
    unfolded: tuple[Refusal, ...] = ()
    runs_in: tuple[RunsIn, ...] = ()
    fusions: Fusions | None = None
    quantized: Quantization | None = None
    precision: Precision | None = None
    planned: bool = False
    health: tuple[Health, ...] = ()
    health_runs: tuple[HealthRun, ...] = ()
    loading: Loading | None = None
    runtime: str | None = None

    @property
    def unfused(self) -> tuple[Refusal, ...]:
        """The refusals that leave an RMSNorm unfused."""
        return tuple(refusal for refusal in self.refused if refusal.kind == "norm")

    @property
    def look_alikes(self) -> tuple[Refusal, ...]:
        """The refusals of what computes something else."""
        return tuple(refusal for refusal in self.refused if refusal.kind == "look-alike")

    @property
    def unproved(self) -> tuple[Refusal, ...]:
        """The rewrites that were asked to be proved, and have no proof that holds."""
        return tuple(r for r in self.refused if r.reason in ("proof-failed", "not-provable"))

    @property
    def proof_error(self) -> VerificationError | None:
        """The error of rewrites whose proof fails, of a result that does not load where it should,
        or of a quantization or conversion that loses too much."""
        if not self.unproved:
            return self._not_loaded or self._lost or self._overflows
        failed = [refusal for refusal in self.unproved if refusal.reason == "proof-failed"]
        first, how = (failed or self.unproved)[0], "failed" if failed else "cannot be made"
        return VerificationError(
            f"{plural(len(self.unproved), 'proof')} {how}; the original nodes were kept there.",
            found=f"{first.node}: {first.found}",
            fix="see the refusals in the report; the output computes what the source computes",
        )

    @property
    def _not_loaded(self) -> VerificationError | None:
        loading = self.loading
        if loading is None or not loading.problem or loading.perhaps:
            return None
        what = f"The result does not load in {loading.runtime}, which was to run it."
        fix = "please report this model; see if it loads itself, and --target plain"
        return VerificationError(what, found=loading.problem, fix=fix)

    @property
    def _lost(self) -> VerificationError | None:
        if self.quantized is None or not self.quantized.problem:
            return None
        way = "--quantize int8, or none" if self.quantized.kind == "int4" else "omit --quantize"
        return VerificationError(
            f"The quantization to {self.quantized.kind} loses more than is allowed.",
            found=self.quantized.problem,
            fix=f"use the model only where its answers hold up; or {way}",
        )

    @property
    def _overflows(self) -> VerificationError | None:
        if self.precision is None or not self.precision.problem:
            return None
        what = f"The model in {self.precision.dtype} has other infinities or NaN than in float32."
        fix = "give --inputs that show its magnitudes; or please report this model"
        return VerificationError(what, found=self.precision.problem, fix=fix)

    def apart(self, *kinds: RefusalKind) -> tuple[Refusal, ...]:
        """Return those of ``unfolded`` that are a ``residual``, a ``quantizer`` or a ``rotary``."""
        return tuple(refusal for refusal in self.unfolded if refusal.kind in kinds)

    def words(self) -> tuple[str, str]:
        """Return what was done, or can be, to the norms in ``fused``; and what those in ``kept``
        are already."""
        form = TARGETS[self.target or "portable"].form
        if form == "one node":
            return "fusable" if self.planned else "fused", f"already {form}"
        return "can be written out" if self.planned else "written out", f"already {form}"

    def headline(self) -> str:
        """The line that says it all, e.g. ``9 of 9 RMSNorms, 8 of 8 residuals are one node``.

        Look-alikes are no part of the total.
        """
        fused, kept, refused = len(self.fused), len(self.kept), len(self.unfused)
        total, alike = fused + kept + refused, len(self.look_alikes)
        aside = f"; {plural(alike, 'look-alike')} left alone" if alike else ""
        form = TARGETS[self.target or "portable"].form
        if total == 0 and form != "one node":  # norms that are written out already are not counted
            return f"no RMSNorm to write out{aside}"
        if total == 0:
            return f"no RMSNorm found{aside or ', and nothing that looks like one'}"
        inside = self.fusions.norms if self.fusions else 0
        later = self.fusions.residuals if self.fusions else 0
        counts = [f"{fused + kept} of {plural(total, 'RMSNorm')}"]
        for kind, field, noun in _NEIGHBOURS:
            moved = later if kind == "residual" else 0
            held = moved + sum(getattr(site, field) for site in (*self.fused, *self.kept))
            if every := held + max(len(self.apart(kind)) - moved, 0):
                counts.append(f"{held} of {plural(every, noun)}")
        verb = "can be" if self.planned else "are" if total > 1 or counts[1:] else "is"
        done, already = self.words()
        parts = [f"{fused} {done}"] if kept or refused else []
        words = {"in attention": inside, already: kept, "refused": refused}
        parts += [f"{count} {what}" for what, count in words.items() if count]
        line = f"{', '.join(counts)} {verb} {form}"
        return f"{line}: {', '.join(parts)}{aside}" if parts else line + aside


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Result(Shown):
    """Outcome of `optimize`.

    Attributes:
        model: the new model; external weights are referenced, not loaded.
        report: of the changes, with reasons.
    """

    model: ir.Model
    report: Report

    def noting(self, notes: Sequence[str], *, source: str | None = None) -> Result:
        """Return this with further notes in its report, and another description of its source."""
        own = self.report if source is None else dataclasses.replace(self.report, source=source)
        report = dataclasses.replace(own, notes=(*own.notes, *notes))
        return dataclasses.replace(self, report=report)

    @property
    def reports(self) -> dict[str, Report]:
        """The report, as those of the graphs of a folder: a model alone has no name."""
        return {"": self.report}

    def _shown(self) -> Report:
        return self.report

    def save(
        self, path: StrPath, *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> SaveResult:
        """Write the model atomically.

        Args:
            path: the .onnx file to make.
            weights: what happens to external weights: ``reference`` them where they are (same
                folder only), ``copy`` them to one file ``OUT.data``, or ``embed`` them; ``auto``
                references in the same folder and copies elsewhere.
            force: overwrite an existing file.

        Raises:
            UsageError: the file exists and ``force`` is not given, or the policy cannot be met.
            InputError: the place cannot be written.
        """
        from rmsnorm_export.graph.save import save_model

        return save_model(self.model, path, weights=weights, force=force)

    def to_bytes(self, *, weights: WeightsPolicy = "auto") -> bytes:
        """Serialize the model.

        Args:
            weights: ``embed`` or ``reference`` for a model with external weights.

        Raises:
            InputError: the model has external weights and ``weights`` does not say what to do.
        """
        from rmsnorm_export.graph.save import to_bytes

        return to_bytes(self.model, weights=weights)

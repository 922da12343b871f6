"""The outcome of a comparison of two models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from rmsnorm_export.errors import NotRunError, VerificationError
from rmsnorm_export.printable import plural
from rmsnorm_export.runtime.metrics import NOTHING_COMPARED, ErrorMetrics
from rmsnorm_export.system.shown import Shown

Agreement = Literal["agree", "differ", "not compared", "not run"]

_FAILURES: dict[Agreement, tuple[str, str]] = {
    "differ": (
        "The models differ by more than is allowed.",
        "see the table for where; --rtol and --atol set the bounds",
    ),
    "not compared": (
        "There is nothing in an output that could be compared.",
        "look for overflow in the models, or give inputs whose outputs are finite",
    ),
    "not run": (
        "A model could not be run here, so nothing was compared.",
        "compare it where a runtime has what is missing, as on a GPU",
    ),
}
"""The problem, and what to do about it."""

GREEDY = "generated greedily"
"""End of the ``source`` of a comparison of greedy tokens, each output of which is a step."""

_MOST_ODD = 3
"""Outputs that failed, or with NaN or infinities, that are named."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of the two models.

    Attributes:
        name: of the output.
        metrics: of the second model's values against the first model's.
        bound_abs: largest ``max_abs`` allowed: ``atol + rtol * (largest finite |a|)``.
        passed: the bound held, and NaN and infinities agree.
        reason: what failed, or "".
        tolerance: where the bound comes from, e.g. ``float16: 0.01 of the largest element`` or
            ``given: rtol 0.001``.
        nan, inf: how many elements are NaN, or infinite, in the first model and in the second.
    """

    name: str
    metrics: ErrorMetrics
    bound_abs: float
    passed: bool
    reason: str
    tolerance: str = ""
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)

    def no_numbers(self) -> str:
        """Say how many elements are none, e.g. ``2 NaN, 3 infinite``; "" where all are numbers."""
        counts = ((self.nan, "NaN"), (self.inf, "infinite"))
        texts = (
            f"{a} {what}" if a == b else f"{a} and {b} {what}" for (a, b), what in counts if a or b
        )
        return ", ".join(texts)


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceSite:
    """The RMSNorm at which, or after which, two models begin to differ.

    Attributes:
        name: of its node, or of the last of its nodes.
        op: kind of the norm, e.g. ``RMSNorm``.
        module: path of the PyTorch module that it came from, where the exporter wrote it down.
        place: ``at``: the value that differs is its result; ``before``: it is the last norm on the
            way to that value.
    """

    name: str
    op: str
    module: str | None
    place: Literal["at", "before"]


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs, computed from values that agree.

    Attributes:
        value: its name, which both models have; where one is PyTorch, that of the other.
        node: name of the node that computes it in the second model, or in the first where the
            second is PyTorch; the operator type where it has no name.
        op: type of that node.
        module: path of the PyTorch module of the node, where it is known.
        site: the norm at or before it; None: no norm is on the way to it.
        inputs: the nearest values before it that were compared.
        inputs_agree: all of them are within bounds; False where the search could not go on.
        conclusion: the outcome as a sentence.
        comparison: of that value. The bound is relative to the largest element, huge ones that are
            equal in both, as of a mask, not counted.
        compared: values that both models computed for this.
        shared: values that both models have.
    """

    value: str
    node: str
    op: str
    module: str | None
    site: DifferenceSite | None
    inputs: tuple[str, ...]
    inputs_agree: bool
    conclusion: str
    comparison: OutputComparison
    compared: int
    shared: int


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Verification(Shown):
    """Outcome of ``verify``.

    Attributes:
        outputs: one entry per output of the first model, in its order.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)``; where they differ, the first
            model's and the second model's, joined by ``and``.
        inputs: what was fed, e.g. ``input_ids int64 [2, 3]``.
        source: where the inputs came from: ``random, seed 0``, a path, or ``given arrays``.
        notes: what the reader should know, e.g. that an output holds no finite number.
        backends: what ran each model: ``onnxruntime``, ``onnxruntime-cuda``, ``torch``, or of an
            engine ``tensorrt`` or ``tensorrt-rtx``.
        first_difference: where the models begin to differ; None where they agree, or where that
            was not looked for (see ``notes``).
        not_run: why a model could not be run here, so that nothing was compared; or "".
        passed: every output passed, and there is one.
        reason: why not: the first outputs that failed, with their bounds; or "".
        verdict: what the other fields come to; ``not compared``: no output differs, and one or more
            hold nothing to compare.
    """

    outputs: tuple[OutputComparison, ...]
    runtime: str
    inputs: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    backends: tuple[str, str] = ("onnxruntime", "onnxruntime")
    first_difference: Difference | None = None
    not_run: str = ""
    passed: bool = False
    reason: str = ""
    verdict: Agreement = "agree"

    def __post_init__(self) -> None:
        failed = [output for output in self.outputs if not output.passed]
        nothing = all(output.reason in NOTHING_COMPARED for output in failed)
        verdict = "not run" if self.not_run else "not compared" if nothing else "differ"
        passed = bool(self.outputs) and not failed and not self.not_run
        object.__setattr__(self, "passed", passed)
        object.__setattr__(self, "verdict", "agree" if passed else verdict)
        reasons = [f"{output.name}: {output.reason}" for output in failed[:_MOST_ODD]]
        if len(failed) > _MOST_ODD:
            reasons.append(f"{plural(len(failed) - _MOST_ODD, 'output')} more")
        reason = "" if passed else "; ".join(reasons) or self.not_run or "there is no output"
        object.__setattr__(self, "reason", reason)

    @property
    def greedy(self) -> bool:
        """Whether greedy tokens were compared, so that each output is the logits of a step."""
        return self.source.endswith(GREEDY)

    def no_numbers(self) -> str:
        """Say which outputs hold NaN or infinities, e.g. ``; y: 2 NaN``; "" where none does."""
        odd = [f"; {o.name}: {o.no_numbers()}" for o in self.outputs if o.no_numbers()]
        more = f"; {len(odd) - _MOST_ODD:,} outputs more" if len(odd) > _MOST_ODD else ""
        return "".join(odd[:_MOST_ODD]) + more

    def error(self, *, fix: str = "") -> VerificationError | None:
        """Return what a command ends with; None when all passed.

        Args:
            fix: where the models differ; "": as for ``verify``.
        """
        if self.passed:
            return None
        what, own_fix = _FAILURES[self.verdict]
        first = self.first_difference
        detail = self.reason if first is None else f"{self.reason}; {first.conclusion}"
        kind = NotRunError if self.not_run else VerificationError
        return kind(what, found=detail, fix=(self.verdict == "differ" and fix) or own_fix)


def not_run(error: NotRunError, **facts: Any) -> Verification:
    """Return the outcome for a model that could not be run here; ``facts`` are further fields."""
    reason, source = f"{error.what.rstrip('.')}: {error.found}", "none: nothing was run"
    return Verification((), inputs=(), source=source, not_run=reason, **facts)


def merged(parts: Mapping[str, Verification]) -> Verification:
    """Return several comparisons as one, in which an output is called ``part: name``."""
    firsts = (part.first_difference for part in parts.values())
    return dataclasses.replace(
        next(iter(parts.values())),
        outputs=tuple(
            dataclasses.replace(output, name=f"{name}: {output.name}")
            for name, part in parts.items()
            for output in part.outputs
        ),
        inputs=tuple(f"{name}: {text}" for name, part in parts.items() for text in part.inputs),
        notes=tuple(f"{name}: {note}" for name, part in parts.items() for note in part.notes),
        first_difference=next(filter(None, firsts), None),
        not_run="; ".join(part.not_run for part in parts.values() if part.not_run),
    )

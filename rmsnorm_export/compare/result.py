"""The outcome of a comparison of two models."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rmsnorm_export.errors import NotRunError, VerificationError
from rmsnorm_export.printable import one_line
from rmsnorm_export.runtime.metrics import NOTHING_COMPARED, ErrorMetrics
from rmsnorm_export.system.shown import Shown

_BOUNDS = "see the table for where; --rtol, --atol and --max-ulp set the bounds"
NO_OUTPUT = "the models have no output, so nothing was compared"


@dataclasses.dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of the two models.

    Attributes:
        name: of the output.
        metrics: of the second model's values against the first model's.
        bound_abs: largest ``max_abs`` allowed: ``atol + rtol * (largest finite |a|)``.
        bound_ulp: largest ``max_ulp`` allowed; None: no such bound.
        passed: every bound held, and NaN and infinities agree.
        reason: the bound that failed, or "".
        tolerance: where the bound comes from, e.g. ``float16: 0.01 of the largest element, 20
            units of roundoff (4.9e-04) through the layers`` or ``given: rtol 0.001``.
    """

    name: str
    metrics: ErrorMetrics
    bound_abs: float
    bound_ulp: float | None
    passed: bool
    reason: str
    tolerance: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceSite:
    """The RMSNorm at which, or after which, two models begin to differ.

    Attributes:
        name: of its node, or of the last of its nodes.
        op: kind of the norm, e.g. ``RMSNorm``.
        module: path of the PyTorch module that it came from, where the exporter wrote it down.
        place: ``at``: it computes the value that differs from values that agree; ``among``: it does
            so together with other nodes, of which any may be the cause; ``before``: it is the last
            norm on the way to that value.
    """

    name: str
    op: str
    module: str | None
    place: Literal["at", "among", "before"]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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
        conclusion: the finding as a sentence.
        comparison: of that value. It may be within its bound, where the difference jumps here and
            grows beyond the bound later, which ``conclusion`` says then. The bound is relative to
            the largest element, huge ones that are equal in both, as of a mask, left out.
        compared: values that both models computed for this.
        shared: values that both models have.
        output: name of the output whose difference was followed to this place.
        notes: what the search did not look into.
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
    output: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return one_line(f"<Difference at {self.value}: {self.conclusion}>")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Verification(Shown):
    """Outcome of ``verify``.

    Attributes:
        passed: every output passed, and there is one.
        reason: why not: the outputs that failed, with their bounds; or "".
        outputs: one entry per output of the first model, in its order.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)``; where they differ, the first
            model's and the second model's, joined by ``and``.
        optimized: whether ONNX Runtime's own graph optimization was on, for each model.
        inputs: what was fed, e.g. ``input_ids int64 [2, 3]``.
        source: where the inputs came from: ``random, seed 0``, a path, or ``given arrays``.
        notes: what the reader should know, e.g. that an output holds no finite number.
        backends: what ran each model: ``onnxruntime``, ``onnxruntime-cuda``, ``torch``,
            ``tensorrt`` or ``tensorrt-rtx``.
        first_difference: where the models begin to differ; None where they agree, or where that
            was not looked for (see ``notes``).
        not_run: why a model could not be run here, so that nothing was compared; or "".
        verdict: what the other fields come to; ``not compared``: no output differs, and one or more
            hold nothing to compare.
    """

    passed: bool
    reason: str
    outputs: tuple[OutputComparison, ...]
    runtime: str
    optimized: tuple[bool, bool]
    inputs: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    backends: tuple[str, str] = ("onnxruntime", "onnxruntime")
    first_difference: Difference | None = None
    not_run: str = ""
    verdict: Literal["agree", "differ", "not compared", "not run"] = "agree"

    @property
    def found(self) -> str:
        """The outputs that failed, and where the models begin to differ; "" when all passed."""
        first = self.first_difference
        return self.reason if first is None else f"{self.reason}; {first.conclusion}"

    def __post_init__(self) -> None:
        passed = self.passed and bool(self.outputs)
        object.__setattr__(self, "passed", passed)
        if not self.outputs and not self.reason:
            object.__setattr__(self, "reason", NO_OUTPUT)
        failed = {output.reason for output in self.outputs if not output.passed}
        verdict = "not compared" if failed <= set(NOTHING_COMPARED) else "differ"
        verdict = "agree" if self.passed else "not run" if self.not_run else verdict
        object.__setattr__(self, "verdict", verdict)

    @property
    def failure(self) -> str:
        """What happened, as a sentence; "" when all passed."""
        return {
            "agree": "",
            "differ": "The models differ by more than is allowed.",
            "not compared": "There is nothing in an output that could be compared.",
            "not run": "A model could not be run here, so nothing was compared.",
        }[self.verdict]

    def error(self, what: str = "", *, fix: str = "") -> VerificationError | None:
        """What a command ends with; None when all passed.

        Args:
            what: happened where the models differ; "": as ``failure`` says.
            fix: where they differ; "": as for ``verify``.
        """
        fixes = {
            "differ": fix or _BOUNDS,
            "not compared": "look for overflow in the models, or give inputs whose outputs are"
            " finite",
            "not run": "compare it where a runtime has what is missing, as on a GPU",
        }
        if self.passed:
            return None
        kind = NotRunError if self.not_run else VerificationError
        what = (self.verdict == "differ" and what) or self.failure
        return kind(what, found=self.found, fix=fixes[self.verdict])


def not_run(error: NotRunError, **known: Any) -> Verification:
    """The outcome for a model that could not be run here; ``known`` are further fields."""
    reason = f"{error.what.rstrip('.')}: {error.found}"
    return Verification(
        passed=False,
        reason=reason,
        outputs=(),
        inputs=(),
        source="none: nothing was run",
        not_run=reason,
        **known,
    )

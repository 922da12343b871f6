"""The outcome of the proof of a site."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_export.printable import number, one_line


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """One site, original nodes against new nodes.

    Attributes:
        passed: every bound held.
        reason: the bound that failed, or why nothing could be compared, or "".
        cases: names of the inputs that were run (random, tiny, huge, zeros, ...).
        max_ulp: largest distance of new from original, in units in the last place of the output
            type.
        mismatch: fraction of elements that differ at all.
        max_abs: largest absolute difference.
        error_before: largest error of the original against float64, in ulp of the output type.
        error_after: the same for the new nodes.
        bound_ulp: the largest ``max_ulp`` that the site's numerics class allows.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)`` or ``numpy``.
        form: equal in sites that differ in the numbers of their scale alone, which share the runs
            with scales that are drawn; "": there is none.
        compared: there were numbers to compare; else the site could not be cut out or run.
    """

    passed: bool
    reason: str = ""
    cases: tuple[str, ...] = ()
    max_ulp: float = 0.0
    mismatch: float = 0.0
    max_abs: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0
    bound_ulp: float = 0.0
    runtime: str = ""
    form: str = ""
    compared: bool = True

    def __repr__(self) -> str:
        verdict = "holds" if self.passed else f"FAILED, {one_line(self.reason)}"
        measured = f"{number(self.max_ulp)} ulp, {number(self.bound_ulp)} allowed"
        return f"<Proof: {verdict}: {measured}>"


NOT_COMPARED = Proof(
    False, "", (), math.inf, 1.0, math.inf, math.inf, math.inf, runtime="", compared=False
)
"""Of a site that could not be run."""

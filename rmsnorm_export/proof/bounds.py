"""How far a fused norm may be from its source: derived from the rounding steps, not chosen.

Notation: u is the unit roundoff (half the gap between neighbours, relative), T the type of X, S the
stash type. A relative difference r is at most r / u ulp.

*In S.* The sum of n squares has terms >= 0, so nothing cancels. A running sum in one register (ONNX
Runtime's bfloat16 and residual kernels have no more) errs in every addition by up to u times the
partial sum, which grows linearly. Independent errors of standard deviation u/sqrt(3) make a
relative sqrt(n)/3 u, halved by the root; 6 deviations are sqrt(n) u. Squares of half types have few
bits, so their errors are correlated: twice that. Where all squares are equal, all errors may have
one sign: n u, halved by the root. The other steps (square, mean, epsilon, root, reciprocal, two or
three products) are under 4 u. Observed in ONNX Runtime 1.31, error in u of float32 at n = 4096: 4
for float32 rows, 20 in the residual kernel, 89 for bfloat16 rows, 502 for equal elements; the
bounds are 132 and 2052.

*In T.* When S is wider, both sides round nearly equal numbers, so an intermediate differs by at
most 1 ulp, which is 2u of its size; each later rounding adds up to 2u. With c roundings to T before
the last, the result is at most max(1, 2c) ulp off.
"""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec

UNIT_ROUNDOFF = {FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8, FLOAT: 2.0**-24, DOUBLE: 2.0**-53}

_ELEMENTWISE = 4.0

# ONNX Runtime's float32 Sigmoid is an approximation of small absolute error: up to 43 ulp from the
# exact value for |z| <= 4 (observed in 1.31), the range of the gates that proofs feed; Exp is exact
# within 1 ulp, so two spellings of the gate differ by that much.
_SIGMOID = 64.0


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far a norm of rows of ``n`` elements of ``dtype`` (ONNX element type T) may be off.

    ``equal_squares`` says of a row that all its elements have the same size.
    """

    spec: NormSpec
    dtype: int
    n: int
    scaled: bool
    biased: bool

    def stash_error(self, *, equal_squares: bool) -> float:
        """Largest error, in ulp of T, of a row computed in S with the sum in any order."""
        spec = self.spec
        terms = spec.partial_size or spec.group_size or self.n
        error = _ELEMENTWISE
        if spec.stash_type not in HALF_TYPES:  # there the mean is one operator, rounded once
            error += terms / 2 if equal_squares else 2 * math.sqrt(terms)
        if spec.kind == "GatedRMSNorm":
            error += _SIGMOID
        return error * UNIT_ROUNDOFF[spec.stash_type] / UNIT_ROUNDOFF[self.dtype]

    def roundings(self) -> int:
        """How many results are rounded to T, after the root mean square and before the last."""
        spec = self.spec
        if self.dtype == spec.stash_type or spec.scale_before_cast:
            return 0
        gated = spec.kind == "GatedRMSNorm" and not spec.gate_first
        later = self.scaled + self.biased + gated  # each takes a number that was rounded to T
        return later + spec.round_rstd + bool(self.scaled and spec.scale_offset)

    def distance(
        self, numerics: Numerics, *, equal_squares: bool, elided: bool, error_before: float
    ) -> float:
        """Largest distance of new from original, in ulp of T.

        Args:
            numerics: class of the rewrite. ``reordered`` adds one rounding of T, ``upcast`` allows
                the whole error of the original.
            equal_squares: as above.
            elided: the runtime may drop roundings to T on either side, each worth one ulp.
            error_before: error of the original against float64 in ulp.
        """
        if numerics == "upcast":
            return error_before + self.accuracy(equal_squares=equal_squares)
        slack = 2 * self.stash_error(equal_squares=equal_squares)  # original and new
        if self.dtype == self.spec.stash_type:
            return slack
        steps = self.roundings()
        reordered = 1 if numerics == "reordered" else 0
        return max(1, 2 * steps) + reordered + math.floor(slack) + (steps if elided else 0)

    def accuracy(self, *, equal_squares: bool) -> float:
        """Error against float64, in ulp of T, that the rounding steps of the norm alone explain.

        Half an ulp for the last rounding, one ulp for every earlier one (u of a number is at most
        one ulp of it), one for the rounded residual sum, and the order of the sum.
        """
        residual = 1.0 if self.spec.kind == "SkipRMSNorm" else 0.0
        return 0.5 + self.roundings() + residual + self.stash_error(equal_squares=equal_squares)

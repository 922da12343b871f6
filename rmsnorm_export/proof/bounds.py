"""The bounds of a fused norm's distance from its source, derived from the rounding steps.

Notation: u is the unit roundoff (half the gap between neighbours, relative), T the type of X, S the
stash type, eta the smallest positive number of a type. A relative difference r is at most r / u
ulp, for an ulp of a number is at least u of it.

*In S, step by step.* Each operator errs by u of its result, and the square root halves what came
before it. The mean is a product with a rounded 1/n, or one division: 2u, halved 1. Epsilon is
added: u, halved 1/2. Root 1, inverse 1, product with the row 1. The product with the scale, the sum
of scale and offset, and the bias are 1 each. Squares and their sum are exact in the rows that are
made so: integers times a power of two, so few and so small that the sum of their squares is an
integer of S, in whatever order (``feeds``). No more is allowed there, whatever n.

A length (``unit_length``) is one operator in place of square, mean and root: u, less than theirs.
In a half S it is rounded once, and off by eta / 2 where it is subnormal itself.

*The sum of other rows.* The sum of n squares has terms >= 0, so nothing cancels. A running sum in
one register (ONNX Runtime's bfloat16 and residual kernels have no more) errs in every addition by
up to u times the partial sum, which grows linearly. Independent errors of standard deviation
u/sqrt(3) make a relative sqrt(n)/3 u, halved by the root; 6 deviations are sqrt(n) u. Squares of
half types have few bits, so their errors are correlated: twice that. Where all squares are equal,
all errors may have one sign: n u, halved by the root. The square itself is u, halved 1/2. Observed
in ONNX Runtime 1.31, error in u of float32 at n = 4096: 4 for float32 rows, 20 in the residual
kernel, 89 for bfloat16 rows, 502 for equal elements.

*Subnormal squares.* A result below the smallest normal number errs by eta / 2 instead: each square,
and so their mean, and the mean itself once more. The mean square M is off by up to eta, so the row
is off by what that makes of 1 / rms, which without an epsilon is without bound as M nears eta.

*In T.* When S is wider, both sides round nearly equal numbers, so an intermediate differs by at
most 1 ulp, which is 2u of its size; each later rounding adds up to 2u. With c roundings to T before
the last, the result is at most max(1, 2c) ulp off. Where an intermediate is subnormal in T its ulp
is eta, and the scale makes as much of it as it is large.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Float64Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.reference import root
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, ORIGINAL, NormSpec
from rmsnorm_export.runtime.metrics import FINFO

_DERIVED_FOR = ORIGINAL | {"unit_length", "scale_rstd", "scale_varies"}

UNIT_ROUNDOFF = {FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8, FLOAT: 2.0**-24, DOUBLE: 2.0**-53}

EXACT_SUMS = frozenset({"random", "tiny", "epsilon", "huge", "large", "negative", "zeros"})
"""The cases (``feeds``) whose squares add up without a rounding."""

# ONNX Runtime's float32 Sigmoid is an approximation of small absolute error: up to 43 ulp from the
# exact value for |z| <= 4 (observed in 1.31), the range of the gates that proofs feed; Exp is exact
# within 1 ulp, so two spellings of the gate differ by that much.
_SIGMOID = 64.0


def smallest(dtype: int) -> float:
    """Return the smallest positive number of an ONNX element type."""
    return float(FINFO[numpy_dtype(dtype)].smallest_subnormal)


def sum_of(case: str, spec: NormSpec) -> str:
    """Return how squares of a row add up: ``exact`` in any order, ``equal`` terms, or ``any``."""
    if spec.stash_type in HALF_TYPES:
        return "exact"  # there the mean is one operator, rounded once
    if case == "constant":
        return "equal"
    return "exact" if case in EXACT_SUMS and not spec.gate_first else "any"


def where_epsilon_counts(spec: NormSpec, n: int) -> float:
    """Return the root mean square of rows of ``n`` that are as small as their epsilon."""
    if spec.unit_length:
        return spec.epsilon / math.sqrt(n)
    return spec.epsilon if spec.epsilon_clamp else math.sqrt(spec.epsilon)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The properties of a row on which the bounds depend.

    Attributes:
        sum: of the squares: ``exact`` in any order; of ``equal`` terms; or of ``any``.
        mean_square: the smallest of the row's groups, in float64.
        loss: what the class ``unclamped`` takes from it, relative.
    """

    sum: str = "any"
    mean_square: float = 1.0
    loss: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far a norm of rows of ``n`` elements of ``dtype`` (ONNX element type T) may be off."""

    spec: NormSpec
    dtype: int
    n: int
    scaled: bool
    biased: bool

    def __post_init__(self) -> None:
        """Refuse a norm for which nothing was derived.

        Raises:
            InputError: it has an attribute that no bound takes into account.
        """
        if unknown := self.spec.beyond(_DERIVED_FOR):
            what = "A proof has no bounds for an attribute of the norm."
            raise InputError(what, found=unknown, fix="keep the original nodes")

    def stash_error(self, row: Row) -> float:
        """Return the largest error, in ulp of T, of a row computed in S."""
        spec = self.spec
        terms = spec.partial_size or spec.group_size or self.n
        error = 4.5 + self.scaled + bool(self.scaled and spec.scale_offset) + self.biased
        if spec.stash_type in HALF_TYPES:
            error += 0.5  # of the square
        if row.sum != "exact":
            correlated = 2 if self.dtype in HALF_TYPES else 1
            error += 0.5 + (terms / 2 if row.sum == "equal" else correlated * math.sqrt(terms))
        if spec.kind == "GatedRMSNorm":
            error += _SIGMOID
        unit = UNIT_ROUNDOFF[spec.stash_type]
        error += (self._subnormal(row) + row.loss) / unit
        return error * unit / UNIT_ROUNDOFF[self.dtype]

    def _subnormal(self, row: Row) -> float:
        """Return the relative error of ``1 / rms`` where the squares are subnormal."""
        mean, eta = row.mean_square, smallest(self.spec.stash_type)
        if mean == 0 or not math.isfinite(mean):
            return 0.0
        around = np.array([max(mean - eta, 0.0), mean, mean + eta])
        if self.spec.unit_length and self.spec.stash_type in HALF_TYPES:
            around = (math.sqrt(mean) + np.array([-eta, 0.0, eta])).clip(0.0) ** 2
        low, rms, high = root(self.spec, around).tolist()
        return max(rms / low, high / rms) - 1 if low else math.inf

    def loss(self, mean_square: Float64Array) -> Float64Array:
        """Return the relative loss of ``x / sqrt(mean + e ** 2)`` against ``x / max(rms, e)``."""
        clamp = self.spec.epsilon
        rms = np.maximum(np.sqrt(mean_square), clamp)
        # The square of e is rounded to float32.
        return np.asarray(1.0 - rms / np.hypot(np.sqrt(mean_square), clamp) + UNIT_ROUNDOFF[FLOAT])

    def roundings(self) -> int:
        """Count the results rounded to T after the root mean square and before the last."""
        spec = self.spec
        if self.dtype == spec.stash_type or spec.scale_before_cast:
            return 0
        gated = spec.kind == "GatedRMSNorm" and not spec.gate_first
        scaled = self.scaled and not spec.scale_rstd
        later = scaled + self.biased + gated  # each takes a number that was rounded to T
        return later + spec.round_rstd + bool(scaled and spec.scale_offset)

    def distance(self, numerics: Numerics, row: Row, *, elided: bool, error_before: float) -> float:
        """Return the largest distance of new from original, in ulp of T.

        Args:
            numerics: class of the rewrite. ``reordered`` adds one rounding of T, ``upcast`` allows
                the whole error of the original.
            row: what is known of it.
            elided: the runtime may drop roundings to T on either side, each worth one ulp.
            error_before: error of the original against float64 in ulp.
        """
        if numerics == "upcast":
            return error_before + self.accuracy(row)
        slack = 2 * self.stash_error(row)  # original and new
        if self.dtype == self.spec.stash_type or math.isinf(slack):
            return slack
        return self._steps(numerics, elided=elided) + math.floor(slack)

    def _steps(self, numerics: Numerics, *, elided: bool) -> float:
        steps = self.roundings()
        return max(1, 2 * steps) + (numerics == "reordered") + (steps if elided else 0)

    def underflow(self, numerics: Numerics, *, elided: bool) -> float:
        """Return the absolute slack for each unit of the scale, where a row underflows in T."""
        if self.dtype == self.spec.stash_type or not self.roundings() + (numerics == "reordered"):
            return 0.0
        return self._steps(numerics, elided=elided) * smallest(self.dtype)

    def accuracy(self, row: Row) -> float:
        """Return the error against float64, in ulp of T, that rounding steps alone explain.

        Half an ulp for the last rounding, one ulp for every earlier one (u of a number is at most
        one ulp of it), one for the rounded residual sum, and what is computed in S.
        """
        residual = 1.0 if self.spec.kind == "SkipRMSNorm" else 0.0
        return 0.5 + self.roundings() + residual + self.stash_error(row)

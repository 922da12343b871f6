"""Hold the outputs of original and new nodes against the formula and against each other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array, Float64Array
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.reference import root
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.proof.bounds import UNIT_ROUNDOFF, Bounds, Row, sum_of
from rmsnorm_export.proof.feeds import SUBNORMAL, case_names
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import AT_LARGEST, Match
from rmsnorm_export.runtime.metrics import nonfinite_differ, ulp_distance, ulp_error, ulp_unit

# Two float64 evaluations with pairwise sums differ by some log2(n) * 2**-53; this is far above it
# and far below the smallest change of meaning (a count of n + 1 for n = 10**6 shifts by 5e-7).
MATHEMATICS = 1e-10

# With equal rounding steps an element differs only where the two numbers before a rounding, some
# 10 u of float32 apart, lie on two sides of a boundary of T: in 10 * 2**-13 of all elements for
# each rounding to float16. Another order differs in 10 % and more (LLaMA against Gemma: 10 to 26).
_FLIPS, _STRAY = 0.02, 3


_Row: TypeAlias = Row | Literal["sum"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The result of the formula on the inputs of one run.

    Attributes:
        cases: of every row (leading axes, flattened).
        expected: role of an output (``y``, ``sum``) -> its values in float64.
        mean_square: of every row, the smallest of its groups.
        bias: shape of the normalised axes.
        label: which weight was used, as an addition to a sentence.
        spread: the scale with its offset, of every size, in the shape of the normalised axes; None
            for an ordinary one.
    """

    cases: tuple[str, ...]
    expected: Mapping[str, Float64Array]
    mean_square: Float64Array
    bias: Float64Array | None
    label: str
    spread: Float64Array | None = None


class Judge:
    """Collects the worst of every statement; the first one that fails is the reason."""

    def __init__(self, match: Match, spec: NormSpec, n: int, numerics: Numerics) -> None:
        self._match, self._spec = match, spec
        self._unclamped = numerics == "unclamped"
        # Beside the rows near epsilon that class is the one that the source needs anyway.
        rest: Numerics = "upcast" if match.dtype in HALF_TYPES else "reordered"
        self._numerics: Numerics = rest if self._unclamped else numerics
        scaled, biased = match.scale is not None, match.bias is not None
        self._bounds = Bounds(match.spec, match.dtype, n, scaled=scaled, biased=biased)
        self._worst = Proof(passed=True, cases=case_names(match.dtype))
        self._runtimes: dict[str, None] = {}
        self._all = np.zeros(2, int)  # elements that differ, and all of them
        self._declared = np.zeros(2, int)  # those with every rounding in place

    def copy(self) -> Judge:
        """Return one that has collected as much, to be told more."""
        one = copy.copy(self)
        one._runtimes = dict(self._runtimes)
        one._all, one._declared = self._all.copy(), self._declared.copy()
        return one

    def proof(self) -> Proof:
        """The outcome of everything judged so far."""
        different, elements = self._declared
        if self._numerics == "exact" and different > _STRAY + _FLIPS * elements:
            self._fail(
                f"rounding order: {different} of {elements} elements differ in numpy, where equal"
                " rounding steps (exact) differ in under 2 %"
            )
        mismatch = float(self._all[0] / max(1, self._all[1]))
        runtime = " and ".join(self._runtimes)
        return dataclasses.replace(self._worst, mismatch=mismatch, runtime=runtime)

    def mathematics(
        self, rows: Rows, side: str, role: str, output: Array, constants: Iterable[Array]
    ) -> None:
        """Statement 1: float64 outputs of the ``side`` nodes are those of the formula.

        Raises:
            InputError: they have another shape.
        """
        expected = rows.expected[role]
        if output.shape != expected.shape:
            raise InputError(
                f"The {side} nodes give another shape than the norm.",
                found=f"{output.shape} instead of {expected.shape}",
                fix="keep the original nodes",
            )
        tolerance, size = self._tolerance(constants), np.abs(expected)
        within = np.full(len(rows.cases), tolerance)
        if self._match.edges:
            # The smallest epsilon of all stands for none, which a row of zeros needs.
            some = rows.mean_square > 0
            with np.errstate(over="ignore"):
                within[some] += self._spec.epsilon / rows.mean_square[some]
        if side == "original":
            within += self._computed_epsilon(rows.mean_square)
        if self._unclamped and side == "new":
            within += self._bounds.loss(rows.mean_square)
        if role == "y" and rows.bias is not None:
            size = size + np.abs(rows.bias)
        with np.errstate(all="ignore"):
            apart = np.abs(output - expected).reshape(len(rows.cases), -1)
            off = (apart > within[:, None] * size.reshape(apart.shape)).reshape(output.shape)
        off |= nonfinite_differ(output, expected)
        if not off.any():
            return
        by_row = [values.reshape(len(rows.cases), -1) for values in (off, output, expected)]
        ends_at_largest = any(edge.endswith(AT_LARGEST) for edge in self._match.edges)
        for case, members in _cases(rows):
            # A clamp of the original that ends at the largest number does so in float64 as well.
            if case == "overflow" and side == "original" and self._lenient and ends_at_largest:
                continue
            differ, a, b = (values[members] for values in by_row)
            if differ.any():
                self._fail(
                    f"mathematics: the {side} nodes are not this norm: case {case}{rows.label},"
                    f" {_worst_pair(a, b)}, relative bound {tolerance:.1e}"
                )
                return

    def distance(self, rows: Rows, role: str, before: Array, after: Array, label: str) -> None:
        """Statements 2 and 3 for one output in the declared types, as ``label`` computed it.

        Raises:
            InputError: the two differ in shape or type.
        """
        if before.shape != after.shape or before.dtype != after.dtype:
            raise InputError(
                "The original and the new nodes give different shapes or types.",
                found=f"{before.dtype} {before.shape} and {after.dtype} {after.shape}",
                fix="keep the original nodes",
            )
        self._runtimes[label] = None
        magnitude = self._magnitude(rows, role)
        elided = self._match.dtype in HALF_TYPES and label != "numpy"
        steps = ulp_distance(after, before)
        if magnitude is not None:  # the output is a sum that may cancel
            steps = ulp_error(after, before.astype(np.float64), magnitude)
        if rows.spread is None:
            self._all += (np.count_nonzero(steps), steps.size)
            if label == "numpy" and self._match.dtype in HALF_TYPES and role == "y":
                self._declared += (np.count_nonzero(steps), steps.size)
        errors = [ulp_error(both, rows.expected[role], magnitude) for both in (before, after)]
        columns = [after, before, steps, *errors]
        if role == "y" and rows.spread is not None:
            columns[2:] = self._without_underflow(rows, columns[2:], before, elided=elided)
        by_row = [values.reshape(len(rows.cases), -1) for values in columns]
        for case, members in _cases(rows):
            if case == "overflow" and self._beyond_judgement(label):
                continue
            mean_square = rows.mean_square[members]
            smallest = float(mean_square.min()) if case in SUBNORMAL else 1.0
            # The largest part of a row that the class may take away.
            loss = float(self._bounds.loss(mean_square).max()) if self._unclamped else 0.0
            row: _Row = Row(sum_of(case, self._spec), smallest, loss)
            place = f"case {case}{rows.label}, output {role} in {label}"
            self._case(case, "sum" if role == "sum" else row, [v[members] for v in by_row], place,
                       elided=elided, spread=rows.spread is not None)  # fmt: skip

    def _beyond_judgement(self, label: str) -> bool:
        """Return whether the original may differ where its squares overflow.

        Some kernels of a native operator sum in float64: beyond float32 the operator's definition,
        which the new nodes follow, and the kernel part. The class ``upcast`` is made for that, and
        what overflows elsewhere is what ``edges`` speaks of.
        """
        summed = bool(self._match.native) and label != "numpy"
        return summed or self._numerics == "upcast" or self._lenient

    @property
    def _lenient(self) -> bool:
        """The original is declared to differ at the ends of the range, and the class allows it."""
        return bool(self._match.edges) and self._numerics != "exact"

    def _without_underflow(
        self, rows: Rows, columns: list[Array], before: Array, *, elided: bool
    ) -> list[Array]:
        """Distances less what a row that is subnormal before it meets a large scale explains."""
        slack = self._bounds.underflow(self._numerics, elided=elided)
        if not slack or rows.spread is None:
            return columns
        # A gate is 4 at most.
        factor = slack * np.abs(rows.spread) * (4 if self._spec.kind == "GatedRMSNorm" else 1)
        explained = factor / ulp_unit(before.dtype, rows.expected["y"])
        return [np.maximum(values - explained, 0.0) for values in columns]

    def _case(
        self, case: str, row: _Row, columns: list[Array], place: str, *, elided: bool, spread: bool
    ) -> None:
        after, before, *distances = columns
        worst, error_before, error_after = (float(one.max(initial=0.0)) for one in distances)
        if case == "overflow":  # beyond the range of the stash type float64 is no yardstick
            error_before = error_after = 0.0
        lenient = self._lenient and (spread or case in SUBNORMAL)
        bound, floor = self._limits(row, error_before, elided=elided, lenient=lenient)
        if not spread:
            with np.errstate(all="ignore"):
                apart = np.abs(after.astype(np.float64) - before.astype(np.float64))
            # Sums in any order, and subnormal ones, have wide bounds of their own: reported only
            # where they were needed.
            usual = row in ("sum", Row("exact")) or worst > self._worst.bound_ulp
            self._note(
                max_ulp=worst,
                max_abs=float(np.max(apart, initial=0.0, where=np.isfinite(apart))),
                error_before=error_before,
                error_after=error_after,
                bound_ulp=bound if usual else 0.0,
            )
        if self._numerics != "upcast" and not lenient and nonfinite_differ(after, before).any():
            self._fail(f"NaN or infinity on one side only: {place}, {_worst_pair(after, before)}")
        elif worst > bound:
            self._fail(
                f"distance: {worst:g} ulp from the original, {bound:.3g} allowed"
                f" ({self._numerics}): {place}"
            )
        # What is as near to the original as without leniency may be as far from float64 as it.
        strict, _ = self._limits(row, error_before, elided=elided, lenient=False)
        if error_after > (floor if lenient and worst > strict else max(error_before, floor)):
            self._fail(
                f"accuracy: {error_after:.4g} ulp from float64, the original"
                f" {error_before:.4g}, {floor:.4g} explained by rounding: {place}"
            )

    def _note(self, **seen: float) -> None:
        """Keep the largest of what a report tells."""
        largest: dict[str, Any] = {n: max(getattr(self._worst, n), seen[n]) for n in seen}
        self._worst = dataclasses.replace(self._worst, **largest)

    def _limits(
        self, row: _Row, error_before: float, *, elided: bool, lenient: bool
    ) -> tuple[float, float]:
        """The largest distance from the original, and the error that rounding explains."""
        if row == "sum":  # one addition on both sides
            return error_before + 0.5 if self._numerics == "upcast" else 0.0, 0.5
        numerics: Numerics = "upcast" if lenient else self._numerics
        distance = self._bounds.distance(numerics, row, elided=elided, error_before=error_before)
        return distance, self._bounds.accuracy(row)

    def _magnitude(self, rows: Rows, role: str) -> Float64Array | None:
        """Where an ulp is not that of the output itself: at the larger of result and bias, for the
        sum may cancel; at the exact result, where the original may be far from it."""
        expected = rows.expected[role]
        if role == "y" and rows.bias is not None:
            return np.maximum(np.abs(expected), np.abs(rows.bias))
        return expected if self._numerics == "upcast" or self._lenient else None

    def _tolerance(self, constants: Iterable[Array]) -> float:
        """Constants such as 1/n and sqrt(n) are rounded to their type: one ulp of 1 for each, and
        what the rounding is of a factor that is known."""
        rounded: set[tuple[str, bytes]] = set()
        factor, known = np.float64(self._match.factor), 0.0
        for constant in constants:
            wide = constant.astype(np.float64)
            if np.all(wide == factor.astype(constant.dtype).astype(np.float64)):
                known = max(known, float(abs(wide.flat[0] / factor - 1.0)))
            elif np.all(wide == self._spec.epsilon):
                continue
            elif constant.dtype != np.float64 and _is_rounded(constant):
                rounded.add((str(constant.dtype), constant.tobytes()))
        units = sum(float(ulp_unit(np.dtype(name), np.float64(1.0))) for name, _ in rounded)
        return MATHEMATICS + units + known

    def _computed_epsilon(self, mean_square: Float64Array) -> Float64Array:
        """What half an ulp of epsilon makes of rows: where the source has a multiple of it, or its
        square, it was rounded to float32 to be stored."""
        if self._spec.stash_type == DOUBLE:
            return np.zeros_like(mean_square)
        beside = self._spec.epsilon * (1 + UNIT_ROUNDOFF[FLOAT])
        rms, other = (
            root(dataclasses.replace(self._spec, epsilon=epsilon), mean_square)
            for epsilon in (self._spec.epsilon, beside)
        )
        with np.errstate(all="ignore"):
            return np.nan_to_num(other / rms - 1)

    def _fail(self, reason: str) -> None:
        if self._worst.passed:
            self._worst = dataclasses.replace(self._worst, passed=False, reason=reason)


def _cases(rows: Rows) -> Iterator[tuple[str, list[int]]]:
    """Each case with its rows."""
    for case in dict.fromkeys(rows.cases):
        yield case, [index for index, name in enumerate(rows.cases) if name == case]


def _is_rounded(constant: Array) -> bool:
    """Return whether the significand is used to its end, as that of a rounded 1/n or sqrt(n) is.

    Integers, 0.5 and powers of two leave the last four bits free.
    """
    values = constant.astype(np.float64)
    values = values[np.isfinite(values)]
    unit = ulp_unit(constant.dtype, values)
    return bool(np.any(np.fmod(values, 16 * unit) != 0))


def _worst_pair(a: Array, b: Array) -> str:
    """The two numbers that are furthest apart, for a reason."""
    wide_a, wide_b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        apart = np.abs(wide_a - wide_b) / np.maximum(np.abs(wide_b), 1e-300)
    apart = np.where(nonfinite_differ(wide_a, wide_b), np.inf, np.nan_to_num(apart, posinf=0.0))
    index = int(np.argmax(apart))
    return f"{wide_a[index]:.9g} instead of {wide_b[index]:.9g}"

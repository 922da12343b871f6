"""Interval arithmetic on arrays: every number that the declared rounding steps can give.

A value is a pair of arrays, the smallest and the largest result that rounding, and the order in
which sums and products are taken, can lead to. A model is fed points, so that an interval is as
wide as rounding errors alone make it, and no wider: the bound of a comparison is computed from the
model that is compared, not chosen. An element of which nothing is known (an infinity on one side, a
divisor that may be zero) is the interval from minus to plus infinity.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
HALF = (F16, BF16)
FLOATS = (F16, BF16, F32, F64)

UNIT = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24, F64: 2.0**-53}
"""Unit roundoff: half the relative gap between neighbouring numbers."""

SMALLEST = {F16: 2.0**-24, BF16: 2.0**-133, F32: 2.0**-149, F64: 2.0**-1074}
"""Smallest positive number."""

PRODUCT = 2.0
"""Rounding errors, in units of roundoff, granted to an operator that is rounded once: one for its
own, one for the step that another spelling of the same formula has more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """What an evaluation stands for.

    Attributes:
        wide: the mathematics of the model: floats that depend on an input are float64, and their
            casts do nothing; constants keep the value that their own type gives them.
        spread: results are intervals; otherwise every operator is rounded once, as declared.
        free: each rounding to a half type may be there or not, as in runtimes that keep float32
            between operators.
        runtime: errors of kernels of ONNX Runtime count, where they are larger than roundings.
    """

    wide: bool = False
    spread: bool = False
    free: bool = False
    runtime: bool = False


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """``lo`` and ``hi`` are one array where the value is a point; ``dtype`` is the declared one."""

    lo: Array
    hi: Array
    dtype: np.dtype[Any]
    constant: bool = False

    @property
    def point(self) -> bool:
        return self.lo is self.hi

    @property
    def rank(self) -> int:
        return self.lo.ndim


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype in FLOATS


def hull(corners: Sequence[Array]) -> tuple[Array, Array]:
    """The smallest and the largest of some results; unknown where only some of them are NaN."""
    if len(corners) == 1:
        return corners[0], corners[0]
    lo, hi = corners[0], corners[0]
    for corner in corners[1:]:
        lo, hi = np.minimum(lo, corner), np.maximum(hi, corner)
    if (lo == 0).any() or (hi == 0).any():
        # NumPy takes either of two zeros; a quotient tells them apart.
        for corner in corners:
            lo = np.where((lo == 0) & (corner == 0) & np.signbit(corner), corner, lo)
            hi = np.where((hi == 0) & (corner == 0) & ~np.signbit(corner), corner, hi)
    if np.isnan(lo).any():
        every = np.isnan(corners[0])
        for corner in corners[1:]:
            every = every & np.isnan(corner)
        some = np.isnan(lo) & ~every
        lo, hi = np.where(some, -np.inf, lo), np.where(some, np.inf, hi)
    return lo.astype(corners[0].dtype, copy=False), hi.astype(corners[0].dtype, copy=False)


def unknown_where(mask: Array, lo: Array, hi: Array) -> tuple[Array, Array]:
    if not mask.any():
        return lo, hi
    kind = lo.dtype
    return np.where(mask, -np.inf, lo).astype(kind), np.where(mask, np.inf, hi).astype(kind)


def to_half(array: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded to ``dtype``, as float64."""
    return array.astype(dtype).astype(np.float64)


class Arithmetic:
    """The operators that everything is made of, in one mode."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    # values

    def input(self, array: Array) -> Value:
        return self._held(array, array, array.dtype, False)

    def constant(self, array: Array) -> Value:
        return Value(array, array, array.dtype, True)

    def _held(self, lo: Array, hi: Array, dtype: np.dtype[Any], constant: bool) -> Value:
        """A value in the type in which this mode keeps it; nothing is rounded."""
        kind = dtype
        if is_float(dtype) and not constant:
            kind = F64 if self.mode.wide or (self.mode.spread and dtype in HALF) else dtype
        low = lo.astype(kind, copy=False)
        return Value(low, low if hi is lo else hi.astype(kind, copy=False), dtype, constant)

    def store(
        self,
        lo: Array,
        hi: Array,
        dtype: np.dtype[Any],
        steps: float,
        constant: bool,
        underflows: bool = True,
    ) -> Value:
        """The result of an operator: rounded to ``dtype``, with ``steps`` roundings of slack.

        ``underflows``: below the smallest normal number the result is rounded, too.
        """
        mode = self.mode
        if not is_float(dtype) or constant:
            lo2 = lo.astype(dtype, copy=False)
            return Value(lo2, lo2 if hi is lo else hi.astype(dtype), dtype, constant)
        work = F64 if mode.wide else F32 if dtype in HALF else dtype
        # A product is exact in float64, unless a half type's rounding gives way to one of float32.
        rounds = dtype not in HALF or steps > PRODUCT or mode.wide or mode.free
        if mode.spread and steps and rounds:
            lo, hi = self._widened(lo, hi, work, steps, underflows)
        if dtype in HALF and not mode.wide:
            return self._rounded_to_half(lo, hi, dtype)
        return self._held(lo, hi, dtype, False)

    def _rounded_to_half(self, lo: Array, hi: Array, dtype: np.dtype[Any]) -> Value:
        if not self.mode.spread:
            low = lo.astype(dtype)
            return Value(low, low, dtype)
        low = to_half(lo, dtype)
        high = low if hi is lo else to_half(hi, dtype)
        if self.mode.free:
            # Beyond the range a dropped rounding is a number, a kept one an infinity.
            low, high = np.minimum(low, lo), np.maximum(high, hi)
        return Value(low, high, dtype)

    def _widened(
        self, lo: Array, hi: Array, dtype: np.dtype[Any], steps: float, underflows: bool
    ) -> tuple[Array, Array]:
        relative, smallest = steps * UNIT[dtype], SMALLEST[dtype] if underflows else 0.0
        exact = (lo == 0) & (hi == 0)
        low = np.where(exact | ~np.isfinite(lo), lo, lo - (np.abs(lo) * relative + smallest))
        high = np.where(exact | ~np.isfinite(hi), hi, hi + (np.abs(hi) * relative + smallest))
        return low.astype(lo.dtype), high.astype(lo.dtype)

    def slackened(self, value: Value) -> Value:
        """A value that may be one unit of its half type off (class ``reordered``)."""
        if value.dtype not in HALF or not self.mode.spread or self.mode.wide:
            return value
        gap = 2 * UNIT[value.dtype]

        def unit(array: Array) -> Array:
            return (
                np.asarray(np.where(np.isfinite(array), np.abs(array), 0.0)) * gap
                + SMALLEST[value.dtype]
            )

        return Value(value.lo - unit(value.lo), value.hi + unit(value.hi), value.dtype)

    # what operators are made of

    def operands(
        self, values: Sequence[Value], *, factors: bool = False
    ) -> tuple[list[Value], bool]:
        """The values in the type in which they are computed; whether all are constants.

        ``factors``: a constant among them may be a rounded 1/n (`ideal`).
        """
        constant = all(value.constant for value in values)
        if self.mode.free and any(value.dtype in HALF for value in values):
            constant = False  # runtimes that drop roundings drop those of constants, too
        out = []
        for value in values:
            lo, hi = value.lo, value.hi
            if is_float(value.dtype):
                wide = (self.mode.wide and not constant) or value.dtype in HALF
                if factors and self.mode.wide and self.mode.spread and value.constant != constant:
                    lo, hi = ideal(lo, value.dtype)
                elif wide and lo.dtype != F64:
                    low = lo.astype(F64)
                    lo, hi = low, low if value.point else hi.astype(F64)
            out.append(Value(lo, hi, value.dtype, value.constant))
        return out, constant

    def elementwise(
        self,
        function: Callable[..., Array],
        *values: Value,
        steps: float = PRODUCT,
        dtype: np.dtype[Any] | None = None,
        extra: Callable[..., Sequence[Array]] | None = None,
    ) -> Value:
        """Monotone in each operand between its two ends; ``extra`` gives further results."""
        work, constant = self.operands(values, factors=function in (np.multiply, divide))
        ends = [(v.lo,) if v.point else (v.lo, v.hi) for v in work]
        corners = [np.asarray(function(*corner)) for corner in itertools.product(*ends)]
        if extra is not None:
            corners += extra(*work)
        lo, hi = hull(corners)
        if dtype is None:
            floats = [v.dtype for v in work if is_float(v.dtype)]
            dtype = floats[0] if floats else np.asarray(lo).dtype
        result = self.store(lo, hi, dtype, steps, constant, function not in _GRADUAL)
        if all(v.point for v in work):
            return result
        for v in work:
            if v.point or not is_float(v.dtype):
                continue
            unknown = np.isneginf(v.lo) & np.isposinf(v.hi)
            if unknown.any():
                result = self._not_where(unknown, result)
        return result

    def divide(self, a: Value, b: Value) -> Value:
        result = self.elementwise(divide, a, b)
        if b.point or not is_float(b.dtype):
            return result
        either = np.signbit(b.lo) & ~np.signbit(b.hi)  # -0 to 0 is no point
        straddles = (b.lo <= 0) & (b.hi >= 0) & ((b.lo < b.hi) | either)
        return self._not_where(straddles, result)

    def root(self, a: Value) -> Value:
        """Where some, but not all, of the interval is negative nothing is known."""
        result = self.elementwise(np.sqrt, a)
        if a.point:
            return result
        return dataclasses.replace(result, lo=np.where(a.lo == 0, a.lo, result.lo))

    def square(self, a: Value) -> Value:
        def zero(x: Value) -> list[Array]:
            crosses = (x.lo < 0) & (x.hi > 0)
            return [np.where(crosses, 0, np.square(x.lo)).astype(x.lo.dtype)]

        return self.elementwise(np.square, a, extra=None if a.point else zero)

    def _not_where(self, mask: Array, value: Value) -> Value:
        mask = np.broadcast_to(mask, value.lo.shape)
        lo, hi = unknown_where(mask, value.lo, value.hi)
        return dataclasses.replace(value, lo=lo, hi=hi)

    def views(self, function: Callable[[Array], Array], value: Value) -> Value:
        """What moves elements and changes none."""
        lo = np.asarray(function(value.lo))
        hi = lo if value.point else np.asarray(function(value.hi))
        return dataclasses.replace(value, lo=lo, hi=hi)

    def joined(self, function: Callable[..., Array], values: Sequence[Value]) -> Value:
        """Several values moved into one (Concat, Where)."""
        constant = all(v.constant for v in values)
        kind = values[0].dtype
        held = [self._held(v.lo, v.hi, v.dtype, constant) for v in values]
        lo = np.asarray(function(*(v.lo for v in held)))
        if all(v.point for v in held):
            return Value(lo, lo, kind, constant)
        return Value(lo, np.asarray(function(*(v.hi for v in held))), kind, constant)

    def reduced(
        self, value: Value, axes: tuple[int, ...] | None, keep: bool, *, mean: bool
    ) -> Value:
        """Sum or mean; errors of a sum grow with the square root of its terms."""
        (work,), constant = self.operands([value])
        count = _count(work.lo.shape, axes)
        steps = PRODUCT + float(np.sqrt(count))

        def total(array: Array) -> Array:
            out = np.asarray(array.sum(axis=axes, keepdims=keep, dtype=array.dtype))
            return np.asarray(out / np.asarray(count, out.dtype)) if mean else out

        lo = total(work.lo)
        hi = lo if work.point else total(work.hi)
        if self.mode.spread and is_float(value.dtype) and not constant:
            # Terms of both signs cancel: the error is one of their sizes.
            size = total(np.maximum(np.abs(work.lo), np.abs(work.hi)))
            kind = F64 if self.mode.wide else F32 if value.dtype in HALF else value.dtype
            slack = np.where(np.isfinite(size), size, 0) * (steps * UNIT[kind])
            underflow = np.where(size == 0, 0, SMALLEST[kind] if mean else 0)
            slack = (slack + underflow).astype(lo.dtype)
            # A sum of squares is not negative, whatever is rounded.
            below = np.where(lo >= 0, np.maximum(lo - slack, 0), lo - slack).astype(lo.dtype)
            lo, hi = unknown_where(np.isnan(lo) != np.isnan(hi), below, hi + slack)
        if not is_float(value.dtype) or constant or value.dtype not in HALF or self.mode.wide:
            return self.store(lo, hi, value.dtype, 0.0, constant)
        return self._rounded_to_half(lo, hi, value.dtype)

    def cast(self, value: Value, dtype: np.dtype[Any]) -> Value:
        if is_float(dtype) and is_float(value.dtype):
            if value.constant and not (self.mode.free and dtype in HALF):
                return self.constant(value.lo.astype(dtype))
            if self.mode.wide:
                return dataclasses.replace(value, dtype=dtype)
            if dtype in HALF:
                if value.dtype == dtype:
                    return value
                (work,), _ = self.operands([value])
                return self._rounded_to_half(work.lo, work.hi, dtype)
            (work,), _ = self.operands([value])
            return self._held(work.lo.astype(dtype), work.hi.astype(dtype), dtype, False)
        if is_float(dtype):  # from integers: exact where it matters
            lo = value.lo.astype(dtype)
            hi = lo if value.point else value.hi.astype(dtype)
            return self._held(lo, hi, dtype, value.constant)
        lo = _truncated(value.lo, dtype)
        return Value(lo, lo if value.point else _truncated(value.hi, dtype), dtype, value.constant)


def ideal(array: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """A constant in float64, between its stored value and the number that it stands for: 1/k, the
    root of k or one over it, where that number rounds to it."""
    stored = array.astype(F64)
    if stored.size != 1 or dtype == F64 or not 0 < abs(number := float(stored.reshape(()))) < 4096:
        return stored, stored
    for power, exact in ((-1.0, lambda k: 1 / k), (2.0, math.sqrt), (-2.0, lambda k: k**-0.5)):
        count = round(abs(number) ** power)
        if 1 < count <= _LONGEST and float(np.asarray(exact(count)).astype(dtype)) == abs(number):
            other = np.full(stored.shape, math.copysign(exact(count), number))
            return np.minimum(stored, other), np.maximum(stored, other)
    return stored, stored


_LONGEST = 4096  # elements of a row


# Sums of subnormal numbers are exact, roots are no such numbers.
_GRADUAL = (np.add, np.subtract, np.sqrt, np.negative, np.maximum, np.minimum)


def divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        quotient = np.true_divide(a, b)
        return np.asarray(np.trunc(np.where(np.isfinite(quotient), quotient, 0)).astype(a.dtype))
    return np.asarray(a / b)


def _truncated(array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        return np.asarray(array != 0)
    if array.dtype == BF16:
        array = array.astype(np.float32)
    return np.asarray(array.astype(dtype))


def _count(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> int:
    chosen = range(len(shape)) if axes is None else axes
    return int(np.prod([shape[axis] for axis in chosen], dtype=np.int64))

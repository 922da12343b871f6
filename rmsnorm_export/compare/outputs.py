"""Outputs compared: the bounds by type with their reasons, and what is compared with what.

The default bound of an output is relative to its largest element: after many layers single small
elements are differences of large ones and carry no relative accuracy of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.result import OutputComparison
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import array_type
from rmsnorm_export.runtime.metrics import (
    DEFAULT_RTOL,
    compare_arrays,
    is_float,
    without_evidence,
)

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff u: half the distance from 1 to the next number of the type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far two arrays may be apart.

    Attributes:
        atol, rtol, max_ulp: as for ``rmsnorm_export.verify``; None: not given.
        weights: a coarser type in which one of two models keeps most of its weights, and the other
            does not; or "".
        reduced: "" or why float32 is computed with fewer digits than it has, e.g. ``TF32 products
            on CUDA``: 11 significant bits, those of float16.
    """

    atol: float | None = None
    rtol: float | None = None
    max_ulp: float | None = None
    reduced: str = ""
    weights: str = ""

    def relative(self, dtype: str, through: str = "") -> tuple[float, str]:
        """The bound relative to the largest element, and its reason.

        Args:
            dtype: of the arrays.
            through: a coarser type in which they, or what they come from, were computed; or "".
        """
        options = {"rtol": self.rtol, "atol": self.atol, "max_ulp": self.max_ulp}
        given = ", ".join(f"{name} {x:g}" for name, x in options.items() if x is not None)
        if self.rtol is not None or self.atol is not None:
            return self.rtol or 0.0, f"given: {given}"
        also = f"; given: {given}" if given else ""
        if dtype not in DEFAULT_RTOL:
            return 0.0, f"{dtype}: must be equal{also}"
        why = ""
        computed = dtype
        if dtype == "float32" and self.reduced:
            computed, why = "float16", f", those of 11 significant bits: {self.reduced}"
        ways = {self.weights: "in which one model keeps its weights"}
        ways[through] = "by way of which it is computed"
        for way, words in ways.items():
            if DEFAULT_RTOL.get(way, 0.0) > DEFAULT_RTOL[computed]:
                computed, why = way, f", those of {way}, {words}"
        rtol, u = DEFAULT_RTOL[computed], _ROUNDOFF[computed]
        count = rtol / u
        units = f"{count:.1e}" if count >= 1e5 else f"{float(f'{count:.2g}'):.0f}"
        reason = f"{dtype}: {rtol:g} of the largest element, {units} units of roundoff"
        return rtol, f"{reason} ({u:.1e}) through the layers{why}{also}"


def compare_output(
    name: str,
    computed: Array,
    expected: Array,
    bounds: Bounds,
    *,
    largest: float | None = None,
    through: str = "",
) -> OutputComparison:
    """One output against what it should be.

    Args:
        name: of the output.
        computed, expected: arrays of one shape, and one type or two float types, of which the
            narrower one tells the bound.
        bounds: that it has to keep; with neither atol nor rtol, the default rtol of the type.
        largest: what the relative bound refers to; None: the largest finite ``|expected|``.
        through: as for ``Bounds.relative``.
    """
    computed, expected = without_unlike_masks(computed, expected, bounds)
    metrics = compare_arrays(computed, expected)
    relative, tolerance = bounds.relative(metrics.dtype, through)
    if is_float(expected.dtype) and computed.dtype != expected.dtype:
        tolerance += f"; the narrower of {expected.dtype} and {computed.dtype}"
    if largest is None:
        largest = _largest_finite(expected, computed) if relative else 0.0
    bound, max_ulp = (bounds.atol or 0.0) + relative * largest, bounds.max_ulp
    reason = ""
    if not metrics.nan_inf_agree:
        reason = "NaN or infinities in different places"
    elif metrics.max_abs > bound:
        reason = f"largest difference {metrics.max_abs:.3g}, {bound:.3g} allowed"
    elif max_ulp is not None and metrics.max_ulp > max_ulp:
        reason = f"largest difference {metrics.max_ulp:g} ulp, {max_ulp:g} allowed"
    return OutputComparison(name, metrics, bound, max_ulp, not reason, reason, tolerance)


def without_unlike_masks(a: Array, b: Array, bounds: Bounds) -> tuple[Array, Array]:
    """Two arrays of models of unlike float types, with zeros where both have a mask.

    That is a number at the end of the type, which in the narrower one may be an infinity. What only
    overflows there is no mask: it is not at the end of the wider one.
    """
    unlike = a.dtype != b.dtype or bounds.weights
    if not (unlike and is_float(a.dtype) and is_float(b.dtype)):
        return a, b
    masks = _at_the_end(a) & _at_the_end(b) & (np.signbit(a) == np.signbit(b))
    if not masks.any():
        return a, b
    zero_a, zero_b = (np.zeros((), one.dtype) for one in (a, b))
    return np.where(masks, zero_a, a), np.where(masks, zero_b, b)


def _at_the_end(array: Array) -> Array:
    """Where a number is near the largest one of its type, or infinite."""
    limits: Any = ml_dtypes.finfo  # NumPy's does not know bfloat16
    return np.asarray(np.abs(array.astype(np.float64)) >= float(limits(array.dtype).max) / 2)


def _largest_finite(array: Array, other: Array) -> float:
    """The largest finite ``|array|``, but for masks, which are near the largest number of the type
    in both: relative to them nothing would ever differ."""
    if array.dtype.kind in "OSU":
        return 0.0
    sizes = np.abs(array.astype(np.float64))
    counted = np.isfinite(sizes)
    if is_float(array.dtype):
        counted &= ~_at_the_end(array) | (array != other)
    return float(np.max(sizes, initial=0.0, where=counted))


def compare_outputs(
    expected: Mapping[str, Array], computed: Mapping[str, Array], bounds: Bounds
) -> tuple[OutputComparison, ...]:
    """Every output of the first model against the one of the same name.

    An output without a finite number is no evidence, though both models agree on it; nor are
    outputs of which none has an element.
    """
    outputs, nothing = [], without_evidence(expected)
    for name, array in expected.items():
        output = compare_output(name, computed[name], array, bounds)
        if output.passed and name in nothing:
            output = dataclasses.replace(output, passed=False, reason=nothing[name])
        outputs.append(output)
    return tuple(outputs)


def pair_outputs(first: Answer, second: Answer) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of both by one name each: by name where both have names, else in order.

    Raises:
        VerificationError: they cannot be paired, or differ in type or shape.
    """
    if first.named and second.named:
        expected, computed = first.by_name(), second.by_name()
        if lacking := sorted(expected.keys() - computed.keys()):
            raise VerificationError(
                "The second model lacks outputs of the first one.",
                found=", ".join(map(repr, lacking)),
                fix="compare models with the same outputs",
            )
        computed = {name: computed[name] for name in expected}
    else:
        if len(first.arrays) != len(second.arrays):
            raise VerificationError(
                "The two models have different numbers of outputs.",
                found=f"{len(first.arrays)} ({', '.join(first.names)}) and {len(second.arrays)}"
                f" ({', '.join(second.names)})",
                fix="compare models with the same outputs",
            )
        names = first.names if first.named or not second.named else second.names
        expected = dict(zip(names, first.arrays, strict=True))
        computed = dict(zip(names, second.arrays, strict=True))
    for name, array in expected.items():
        other = computed[name]
        if not comparable(array, other):
            raise VerificationError(
                "An output has different types or shapes in the two models.",
                found=f"{name!r}: {array.dtype} {list(array.shape)} and"
                f" {other.dtype} {list(other.shape)}",
                fix="compare models that compute the same",
            )
    return expected, computed


def comparable(a: Array, b: Array) -> bool:
    """Of one shape, and of one type or of two float types."""
    floats = is_float(a.dtype) and is_float(b.dtype)
    return a.shape == b.shape and (a.dtype == b.dtype or floats)


def coarser_type(a: str, b: str) -> str:
    """Of the float types of two models' weights the one with fewer digits; "" where they agree."""
    known = {name for name in (a, b) if name in DEFAULT_RTOL}
    return max(known, key=DEFAULT_RTOL.__getitem__) if len(known) > 1 else ""


def failed_outputs(outputs: Sequence[OutputComparison]) -> str:
    """The outputs that failed and their reasons; or ""."""
    return "; ".join(f"{output.name}: {output.reason}" for output in outputs if not output.passed)


def describe_feeds(feeds: Mapping[str, Array]) -> tuple[str, ...]:
    """What was fed, e.g. ``input_ids int64 [2, 3]``."""
    return tuple(
        f"{name} {array_type(array.dtype)} {list(array.shape)}" for name, array in feeds.items()
    )

"""Outputs compared: the bounds by type with their reasons, and what is compared with what.

The default bound of an output is relative to its largest element: after many layers single small
elements are differences of large ones and carry no relative accuracy of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.result import OutputComparison
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, compare_arrays, is_float, without_evidence


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The distance that two arrays may have.

    Attributes:
        atol, rtol: as for ``rmsnorm_export.verify``; None: not given.
        reduced: "" or why float32 is computed with fewer digits than it has, e.g. ``the engine was
            built with TF32``: 11 significant bits, those of float16.
        through: a coarser type by way of which the arrays are computed; or "".
    """

    atol: float | None = None
    rtol: float | None = None
    reduced: str = ""
    through: str = ""

    def relative(self, dtype: str) -> tuple[float, str]:
        """Return the bound relative to the largest element of arrays of a type, and its reason."""
        if self.rtol is not None or self.atol is not None:
            return self.rtol or 0.0, f"given: rtol {self.rtol or 0:g}, atol {self.atol or 0:g}"
        if dtype not in DEFAULT_RTOL:
            return 0.0, f"{dtype}: must be equal"
        computed, why = dtype, ""
        if dtype == "float32" and self.reduced:
            computed, why = "float16", f", 11 significant bits: {self.reduced}"
        if DEFAULT_RTOL.get(self.through, 0.0) > DEFAULT_RTOL[computed]:
            computed, why = self.through, f", computed by way of {self.through}"
        rtol = DEFAULT_RTOL[computed]
        return rtol, f"{dtype}: {rtol:g} of the largest element{why}"


def compare_output(
    name: str, computed: Array, expected: Array, bounds: Bounds, *, largest: float | None = None
) -> OutputComparison:
    """Compare one output with what it should be.

    Args:
        name: of the output.
        computed, expected: arrays of one shape, and one type or two float types, of which the
            narrower one tells the bound.
        bounds: that it has to keep; with neither atol nor rtol, the default rtol of the type.
        largest: what the relative bound refers to; None: the largest finite ``|expected|``.
    """
    metrics = compare_arrays(computed, expected)
    relative, tolerance = bounds.relative(metrics.dtype)
    if computed.dtype != expected.dtype and is_float(expected.dtype):
        tolerance += f"; the narrower of {expected.dtype} and {computed.dtype}"
    if largest is None:
        largest = _largest_finite(expected, computed) if relative else 0.0
    bound = (bounds.atol or 0.0) + relative * largest
    reason = ""
    if not metrics.nan_inf_agree:
        reason = "NaN or infinities in different places"
    elif metrics.max_abs > bound:
        reason = f"largest difference {metrics.max_abs:.3g}, {bound:.3g} allowed"
    floats = [a if is_float(a.dtype) else np.zeros(0) for a in (expected, computed)]
    nan, inf = ([int(count(a).sum()) for a in floats] for count in (np.isnan, np.isinf))
    return OutputComparison(
        name, metrics, bound, not reason, reason, tolerance, (nan[0], nan[1]), (inf[0], inf[1])
    )


def _largest_finite(array: Array, other: Array) -> float:
    """Return the largest finite ``|array|`` but for masks: relative to them nothing would differ.

    They are near the largest number of the type, and the same in both.
    """
    if array.dtype.kind in "OSU":
        return 0.0
    limits: Any = ml_dtypes.finfo  # NumPy's does not know bfloat16
    end = float(limits(array.dtype).max) if is_float(array.dtype) else np.inf
    sizes = np.abs(array.astype(np.float64))
    masks = (sizes > end / 2) & (array == other)
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes) & ~masks))


def compare_outputs(
    expected: Mapping[str, Array], computed: Mapping[str, Array], bounds: Bounds
) -> tuple[OutputComparison, ...]:
    """Compare every output of the first model with the one of the same name.

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
    """Return the outputs of both by one name each: by name where both have names, else in order.

    Raises:
        VerificationError: they cannot be paired, or differ in type or shape.
    """
    expected, computed = dict(first.outputs), dict(second.outputs)
    if first.named and second.named:
        if lacking := sorted(expected.keys() - computed.keys()):
            raise _unlike("The second model lacks outputs of the first one.", repr(lacking))
        computed = {name: computed[name] for name in expected}
    elif len(expected) != len(computed):
        counts = (f"{len(one)} ({', '.join(one)})" for one in (expected, computed))
        raise _unlike("The two models have different numbers of outputs.", " and ".join(counts))
    else:
        names = tuple(computed if second.named else expected)
        expected = dict(zip(names, expected.values(), strict=True))
        computed = dict(zip(names, computed.values(), strict=True))
    for name, array in expected.items():
        if not comparable(array, computed[name]):
            both = (f"{one.dtype} {list(one.shape)}" for one in (array, computed[name]))
            raise _unlike(
                "An output has different types or shapes in the two models.",
                f"{name!r}: {' and '.join(both)}",
            )
    return expected, computed


def _unlike(what: str, found: str) -> VerificationError:
    return VerificationError(what, found=found, fix="compare models with the same outputs")


def comparable(a: Array, b: Array) -> bool:
    """Return whether arrays have one shape, and one type or two float types."""
    floats = is_float(a.dtype) and is_float(b.dtype)
    return a.shape == b.shape and (a.dtype == b.dtype or floats)


def describe_feeds(feeds: Mapping[str, Array]) -> tuple[str, ...]:
    """Say what was fed, e.g. ``input_ids int64 [2, 3]``."""
    return tuple(f"{name} {array.dtype} {list(array.shape)}" for name, array in feeds.items())

"""The distance of two arrays: absolute, relative, in units in the last place, in direction.

A unit in the last place (ulp) is the gap between neighbouring numbers of the type; counting gaps
makes errors of float16, bfloat16, float32 and float64 comparable (Goldberg 1991, section 1.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array, Float64Array

NO_FINITE_NUMBER = "no finite number, so nothing was compared"
NO_ELEMENT = "no element, so nothing was compared"
NOTHING_COMPARED = (NO_FINITE_NUMBER, NO_ELEMENT)
"""Why outputs that agree are no evidence."""

BFLOAT16_DTYPE = np.dtype(ml_dtypes.bfloat16)

# Largest |a - b| over the largest |a|. A fused norm differs from its source by some units of
# roundoff (u), and each layer of a residual network passes such differences on about as large as
# they came; tens of layers make tens of u. float32: u = 6e-8, and the sums inside matrix products
# and softmax add to it; 1e-4 is 1700 u. float16: u = 4.9e-4; 1e-2 is 20 u. bfloat16: u = 3.9e-3;
# 4e-2 is 10 u. A wrong epsilon, weight or axis moves a trained model's logits by far more.
DEFAULT_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}

FINFO = {
    np.dtype(kind): ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    for kind in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
}
"""The largest and the smallest numbers of each type; NumPy's own does not know bfloat16."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """Distance of an array ``a`` from a reference ``b`` of the same shape; see ``compare_arrays``.

    NaN equals NaN and an infinity equals itself; a number that is finite on one side only, or NaN
    on one side only, is infinitely far away. Signed zeros are equal.

    Attributes:
        max_abs: largest ``|a - b|``.
        max_ulp: largest number of steps between neighbouring numbers of the type from a to b;
            for integers and booleans ``|a - b|``.
        mismatch: fraction of elements that differ.
        cosine: of the two arrays as vectors, over the elements finite in both; 1 when both are 0.
        nan_inf_agree: NaN and infinities are in the same places with the same signs.
        shape: of both.
        dtype: of both, e.g. ``float16``; the narrower of two.
    """

    max_abs: float
    max_ulp: float
    mismatch: float
    cosine: float
    nan_inf_agree: bool
    shape: tuple[int, ...]
    dtype: str


def is_float(dtype: np.dtype[np.generic]) -> bool:
    """Return whether a type is a float whose ulp distances are known here."""
    return dtype in FINFO


def compare_arrays(a: Array, b: Array) -> ErrorMetrics:
    """Return the metrics of ``a`` against the reference ``b``.

    Args:
        a, b: float16, bfloat16, float32, float64, integers or booleans; same shape, type. Of two
            float types the wider one is the reference, whichever it is: distances are to its
            numbers, in ulp of the narrower type, and an element differs that is not the reference
            rounded.

    Raises:
        InputError: shapes or types differ, or the type is none of these.
    """
    floats = is_float(a.dtype) and is_float(b.dtype)
    mixed = floats and a.dtype != b.dtype
    if mixed and FINFO[b.dtype].nmant < FINFO[a.dtype].nmant:
        a, b = b, a
    comparable = floats or (a.dtype.kind in "biu" and a.dtype == b.dtype)
    if not comparable or a.shape != b.shape:
        found = f"{a.dtype} {a.shape} and {b.dtype} {b.shape}"
        fix = "compare float, integer or boolean tensors of the same shape and type"
        raise InputError("The arrays cannot be compared element by element.", found=found, fix=fix)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if floats:
        with np.errstate(all="ignore"):
            absolute = _of_numbers(np.abs(wide_a - wide_b), wide_a, wide_b)
        ulp = _of_numbers(ulp_error(a, wide_b), wide_a, wide_b) if mixed else ulp_distance(a, b)
    else:  # in Python's integers, which do not overflow
        ulp = absolute = np.abs(a.astype(object) - b.astype(object)).astype(np.float64)
    return ErrorMetrics(
        max_abs=float(absolute.max(initial=0.0)),
        max_ulp=float(ulp.max(initial=0.0)),
        mismatch=float(np.mean(ulp > (0.5 if mixed else 0))) if ulp.size else 0.0,
        cosine=_cosine(wide_a, wide_b),
        nan_inf_agree=not nonfinite_differ(wide_a, wide_b).any(),
        shape=a.shape,
        dtype=str(a.dtype),
    )


def ulp_distance(a: Array, b: Array) -> Float64Array:
    """Steps between neighbouring numbers from ``a`` to ``b``, element by element, as float64.

    The bits of a float without its sign, read as an integer, count the numbers from zero; numbers
    of opposite sign are as far apart as the sum of both counts. Exact up to 2**53 steps.
    """
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    sign_bit = np.uint64(1) << np.uint64(8 * a.dtype.itemsize - 1)
    bits_a = np.ascontiguousarray(a).view(unsigned).astype(np.uint64)
    bits_b = np.ascontiguousarray(b).view(unsigned).astype(np.uint64)
    size_a, size_b = bits_a & ~sign_bit, bits_b & ~sign_bit
    same_sign = (bits_a & sign_bit) == (bits_b & sign_bit)
    apart = np.maximum(size_a, size_b) - np.minimum(size_a, size_b)
    steps = np.where(same_sign, apart, size_a + size_b).astype(np.float64)
    # Infinity and NaN have bits next to those of the largest number, but are no neighbours of it.
    return _of_numbers(steps.reshape(a.shape), a, b)


def ulp_error(
    values: Array, reference: Float64Array, magnitude: Float64Array | None = None
) -> Float64Array:
    """``|values - reference|`` in ulp of the type of ``values``, element by element.

    Args:
        values: float16, bfloat16, float32 or float64.
        reference: the exact results as float64, same shape.
        magnitude: the numbers whose ulp is the unit; the reference when not given. Where a sum
            cancels, the size of its terms is the fair unit.

    Returns:
        float64. Below the smallest normal number the unit is the gap of the subnormals. 0 where
        both are the same infinity, both NaN, or the reference is finite but rounds to the infinity
        in ``values``; infinite where else only one of them is finite.
    """
    unit = ulp_unit(values.dtype, reference if magnitude is None else magnitude)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(wide - reference) / unit
        odd = ~(np.isfinite(wide) & np.isfinite(reference))
        if odd.any():
            rounded = reference.astype(np.float32) if values.dtype == BFLOAT16_DTYPE else reference
            rounded = rounded.astype(values.dtype).astype(np.float64)
            error = np.where(odd, np.where(_identical(wide, rounded), 0.0, np.inf), error)
    return np.asarray(error)


def ulp_unit(dtype: np.dtype[np.generic], at: Float64Array) -> Float64Array:
    """Return the gap between neighbouring numbers of ``dtype`` at the float64 numbers ``at``."""
    info = FINFO[dtype]
    finite = np.where(np.isfinite(at), at, 1.0)
    _, exponent = np.frexp(finite)  # at = m * 2**exponent with 0.5 <= m < 1
    floor = np.where(finite == 0, info.minexp, np.maximum(exponent - 1, info.minexp))
    return np.asarray(np.ldexp(1.0, floor - info.nmant))


def without_evidence(outputs: Mapping[str, Array]) -> dict[str, str]:
    """The outputs of a model that nothing can be compared with, and why.

    That is one of floats without a finite number; and all, where none has an element.
    """
    if not any(array.size for array in outputs.values()):
        return dict.fromkeys(outputs, NO_ELEMENT)
    return {
        name: NO_FINITE_NUMBER
        for name, array in outputs.items()
        if array.size and is_float(array.dtype) and not np.isfinite(array).any()
    }


def nonfinite_differ(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Return where one is NaN or an infinity and the other is not the same."""
    return ~((np.isfinite(a) & np.isfinite(b)) | _identical(a, b))


def _identical(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Compare numbers; NaN is identical to NaN."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | (a == b))


def _of_numbers(distance: Float64Array, a: Array, b: Array) -> Float64Array:
    """``distance`` where both are finite; else 0 where they are identical, and infinity."""
    both = np.isfinite(a) & np.isfinite(b)
    return np.where(both, distance, np.where(_identical(a, b), 0.0, np.inf))


def _cosine(a: Float64Array, b: Float64Array) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if not (a.any() and b.any()):
        return float(a.any() == b.any())
    # Scaled to at most 1, so that the squares neither overflow nor vanish.
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    cosine = float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))
    return min(1.0, max(-1.0, cosine))

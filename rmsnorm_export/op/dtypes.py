"""The four float types of the operator: ONNX element type, NumPy type, correct rounding."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

Array: TypeAlias = npt.NDArray[Any]
Float64Array: TypeAlias = npt.NDArray[np.float64]

_NUMPY: dict[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    FLOAT16: np.dtype(np.float16),
    DOUBLE: np.dtype(np.float64),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_ONNX = {dtype: element_type for element_type, dtype in _NUMPY.items()}

# bfloat16: 8 significant bits; numpy.frexp gives 2**-126, the least normal number, exponent -125.
_BF16_PRECISION = 8
_BF16_LEAST_EXPONENT = -125
_BF16_MAX = (2.0 - 2.0**-7) * 2.0**127


def numpy_dtype(element_type: int) -> np.dtype[Any]:
    """NumPy type of an ONNX element type.

    Raises:
        UsageError: not one of float16, bfloat16, float32, float64.
    """
    try:
        return _NUMPY[element_type]
    except KeyError:
        raise UsageError(
            "The operator takes float element types only.",
            found=f"ONNX element type {element_type}",
            fix="use FLOAT (1), FLOAT16 (10), DOUBLE (11) or BFLOAT16 (16)",
        ) from None


def element_type(dtype: npt.DTypeLike) -> int:
    """ONNX element type of a NumPy type.

    Raises:
        UsageError: not one of float16, bfloat16, float32, float64.
    """
    try:
        return _ONNX[np.dtype(dtype)]
    except KeyError:
        raise UsageError(
            "The operator takes float arrays only.",
            found=f"an array of {np.dtype(dtype)}",
            fix="convert it to float16, bfloat16, float32 or float64",
        ) from None


def type_name(element_type: int) -> str:
    """Name of an ONNX element type, e.g. ``float16`` for 10."""
    return str(numpy_dtype(element_type))


def round_to(values: npt.ArrayLike, element_type: int) -> Float64Array:
    """Round float64 values once, to nearest even, to ``element_type``; the result is float64.

    Beyond the largest finite number the result is infinite, as in IEEE 754 and in every runtime.

    Raises:
        UsageError: ``element_type`` is not a float type of the operator.
    """
    exact = np.asarray(values, dtype=np.float64)
    dtype = numpy_dtype(element_type)
    if element_type == BFLOAT16:
        return _round_to_bfloat16(exact)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return exact.astype(dtype).astype(np.float64)


def _round_to_bfloat16(exact: Float64Array) -> Float64Array:
    """As ``round_to``; ml_dtypes converts by way of float32, which rounds twice."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        _, exponent = np.frexp(exact)
        shift = _BF16_PRECISION - np.maximum(exponent, _BF16_LEAST_EXPONENT)
        rounded = np.ldexp(np.rint(np.ldexp(exact, shift)), -shift)
        beyond = np.abs(rounded) > _BF16_MAX
        return np.where(beyond, np.copysign(np.inf, exact), rounded)

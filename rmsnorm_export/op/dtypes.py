"""The float types of the operator: ONNX element type, NumPy type, correct rounding."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from rmsnorm_export.op.spec import BFLOAT16, FLOAT

Array: TypeAlias = npt.NDArray[Any]
Float64Array: TypeAlias = npt.NDArray[np.float64]

_BF16_PRECISION = 8
_BF16_LEAST_EXPONENT = -125
"""``numpy.frexp`` gives it for 2**-126, the least normal number of bfloat16."""
_BF16_MAX = (2.0 - 2.0**-7) * 2.0**127


def numpy_dtype(element_type: int) -> np.dtype[Any]:
    """Return the NumPy type of an ONNX element type."""
    return ir.DataType(element_type).numpy()


def element_type(dtype: npt.DTypeLike) -> int:
    """Return the ONNX element type of a NumPy type."""
    return int(ir.DataType.from_numpy(np.dtype(dtype)))


def type_name(element_type: int) -> str:
    """Return the name of an ONNX element type, e.g. ``float16`` for 10."""
    return str(numpy_dtype(element_type))


def round_to(values: npt.ArrayLike, element_type: int) -> Float64Array:
    """Round float64 values once, to nearest even, to ``element_type``; the result is float64.

    Beyond the largest finite number the result is infinite, as in IEEE 754 and in every runtime.
    """
    exact = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if element_type != BFLOAT16:
            return exact.astype(numpy_dtype(element_type)).astype(np.float64)
        # ml_dtypes converts by way of float32, which rounds twice.
        _, exponent = np.frexp(exact)
        shift = _BF16_PRECISION - np.maximum(exponent, _BF16_LEAST_EXPONENT)
        rounded = np.ldexp(np.rint(np.ldexp(exact, shift)), -shift)
        beyond = np.abs(rounded) > _BF16_MAX
        return np.where(beyond, np.copysign(np.inf, exact), rounded)


def vanishes(number: float, neutral: float) -> bool:
    """Return whether ONNX Runtime's optimizer takes a float64 number for 0 of a sum or 1 of a
    product, which ``neutral`` is: it reads such a constant as a float32, and removes the node."""
    return number != neutral and float(round_to(number, FLOAT)) == neutral

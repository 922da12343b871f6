"""The scales of MXFP8 (``op.spec.QUANTIZE``): what a function body looks up, and the reference."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import BLOCK, Quantize

_BIAS = 127
NAN = 255
"""The code of a scale that is no number."""

_MOST = 248
"""Above every code of a scale of float32 numbers: the place of NaN in the tables."""

UP = "mxfp8"


def limits(how: Quantize) -> npt.NDArray[np.float32]:
    """For the codes 0 to 247 of a scale the greatest magnitude in a block that has it."""
    powers = np.arange(_MOST) - _BIAS
    exact = np.ldexp(448.0, powers) if how == UP else np.ldexp(1 - 2.0**-24, powers + 9)
    return np.asarray(np.minimum(exact, np.finfo(np.float32).max), np.float32)


def offset(how: Quantize) -> float:
    """What is added to log2 of the greatest magnitude, so that its floor is the code of the scale,
    or 1 less: the logarithm may be off by 0.005."""
    return _BIAS - math.log2(448) + 0.99 if how == UP else _BIAS - 8 - 0.01


def reciprocals() -> npt.NDArray[np.float32]:
    """1 / scale for the codes 0 to 247, and NaN."""
    powers = np.ldexp(np.float32(1), _BIAS - np.arange(_MOST))
    return np.append(powers, np.nan).astype(np.float32)


def scale_codes() -> npt.NDArray[np.uint8]:
    """The codes 0 to 247, and that of NaN."""
    return np.append(np.arange(_MOST), NAN).astype(np.uint8)


def reference_blocks(y: Array, how: Quantize) -> tuple[Array, Array]:
    """MXFP8 codes of ``y``, by the definition.

    Args:
        y: ``[..., n]``, n a multiple of 32, of a type whose numbers float32 has.
        how: ``mxfp8`` or ``mxfp8_floor``.

    Returns:
        The codes, float8_e4m3fn, of the shape of ``y``, and the codes of the scales, uint8,
        ``[..., n / 32]``.
    """
    blocks = y.astype(np.float64).reshape(*y.shape[:-1], y.shape[-1] // BLOCK, BLOCK)
    greatest = np.abs(blocks).max(axis=-1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        if how == UP:
            mantissa, exponent = np.frexp(greatest / 448.0)
            exponent = exponent - (mantissa == 0.5)
        else:
            exponent = np.frexp(greatest)[1] - 9
        exponent = np.where(greatest > 0, np.maximum(exponent, -_BIAS), -_BIAS)
        number = np.isfinite(greatest)
        scales = np.where(number, np.ldexp(1.0, exponent), np.nan)
        codes = np.clip(blocks / scales, -448.0, 448.0).astype(np.float32)
    stored = np.where(number, exponent + _BIAS, NAN).astype(np.uint8)
    return codes.astype(ml_dtypes.float8_e4m3fn).reshape(y.shape), stored[..., 0]

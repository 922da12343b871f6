import ml_dtypes
import numpy as np
import pytest

from rmsnorm_export.op.dtypes import element_type, numpy_dtype, round_to, type_name
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

ALL = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)


def test_types_map_both_ways():
    assert [type_name(t) for t in ALL] == ["float32", "float16", "float64", "bfloat16"]
    assert [element_type(numpy_dtype(t)) for t in ALL] == list(ALL)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_every_half_number_rounds_to_itself(half):
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        stored = bits.view(numpy_dtype(half)).astype(np.float64)
    rounded = round_to(stored, half)
    np.testing.assert_array_equal(rounded, stored)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(stored))


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_rounds_once_to_nearest_even(half):
    """Every midpoint of two neighbours, and a float64 hair, less than float32 has, beside it."""
    bits = np.arange(0, 2**15 - 1, 7, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        low = bits.view(numpy_dtype(half)).astype(np.float64)
        high = (bits + np.uint16(1)).view(numpy_dtype(half)).astype(np.float64)
    finite = np.isfinite(high)
    low, high, even = low[finite], high[finite], (bits % 2 == 0)[finite]
    middle = (low + high) / 2
    np.testing.assert_array_equal(round_to(middle, half), np.where(even, low, high))
    np.testing.assert_array_equal(round_to(np.nextafter(middle, np.inf), half), high)
    np.testing.assert_array_equal(round_to(np.nextafter(middle, 0), half), low)


@pytest.mark.parametrize("target", [FLOAT, FLOAT16, BFLOAT16])
def test_overflow_is_infinite_from_the_midpoint_on(target):
    info = ml_dtypes.finfo(numpy_dtype(target))
    largest = float(info.max)
    limit = largest + (largest - float(np.nextafter(info.max, info.dtype.type(0)))) / 2
    values = [largest, np.nextafter(limit, 0), limit, -limit, np.inf, -np.inf]
    expected = [largest, largest, np.inf, -np.inf, np.inf, -np.inf]
    np.testing.assert_array_equal(round_to(values, target), expected)
    assert np.isnan(round_to(np.nan, target))

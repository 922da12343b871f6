"""Distances between arrays: known ulp counts, special values, every type."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmsnorm_export.errors import InputError
from rmsnorm_export.runtime.metrics import compare_arrays, ulp_distance, ulp_error, ulp_unit

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float16), BF16, np.dtype(np.float32), np.dtype(np.float64)]
PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_steps_between_numbers(dtype: np.dtype) -> None:
    step = 2.0 ** (1 - PRECISION[str(dtype)])
    a = np.array([1.0, 1.0, -2.0, 1.0], dtype)
    b = np.array([1.0 + step, 1.0 - step / 2, -2.0 - 2 * step, 1.0 + 5 * step], dtype)
    assert ulp_distance(a, b).tolist() == [1, 1, 1, 5]
    tiny = np.array([1], f"u{dtype.itemsize}").view(dtype)  # the smallest subnormal
    zero, top = np.zeros(1, dtype), np.array([np.finfo(np.float64).max], np.float64)
    pairs = [(tiny, -tiny), (zero, -zero), (tiny, zero)]
    assert [ulp_distance(*pair).tolist() for pair in pairs] == [[2], [0], [1]]
    # Extreme float64 do not wrap; the largest number is no neighbour of infinity.
    assert ulp_distance(top, -top)[0] == pytest.approx(2.0 * (2047 * 2.0**52 - 1), rel=1e-15)
    assert ulp_distance(top, np.array([np.inf], np.float64))[0] == np.inf


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype: np.dtype) -> None:
    inf, nan = math.inf, math.nan
    a = np.array([nan, nan, inf, inf, -inf, 1.0], dtype)
    b = np.array([nan, 1.0, inf, -inf, 3.0, nan], dtype)
    assert ulp_distance(a, b).tolist() == [0, inf, 0, inf, inf, inf]
    metrics = compare_arrays(a, b)
    assert not metrics.nan_inf_agree
    assert metrics.max_abs == metrics.max_ulp == inf
    assert metrics.mismatch == pytest.approx(4 / 6)
    m = compare_arrays(a, a)
    assert (m.nan_inf_agree, m.max_abs, m.max_ulp, m.mismatch, m.cosine) == (True, 0, 0, 0, 1)


def test_relative_and_cosine() -> None:
    a, b = np.array([3.0, 0.0, 1.0], np.float64), np.array([4.0, 0.0, 1.0], np.float64)
    metrics = compare_arrays(a, b)
    assert (metrics.max_abs, metrics.shape) == (1.0, (3,))
    assert metrics.cosine == pytest.approx(13 / math.sqrt(10 * 17))
    assert compare_arrays(a, np.zeros(3)).cosine == 0.0
    assert compare_arrays(a * 1e300, b * 1e-300).cosine == pytest.approx(metrics.cosine)


def test_integers_booleans_and_nothing() -> None:
    top, low = (np.array([n], np.int64) for n in (2**63 - 1, -(2**63)))
    assert compare_arrays(top, low).max_abs == 2.0**64
    unsigned = compare_arrays(np.array([3], np.uint8), np.array([5], np.uint8))
    assert (unsigned.max_abs, unsigned.max_ulp, unsigned.mismatch) == (2, 2, 1)
    assert compare_arrays(np.array([True, False]), np.array([True, True])).mismatch == 0.5
    nothing = np.zeros((0, 4), np.float32)
    empty = compare_arrays(nothing, nothing)
    assert (empty.max_ulp, empty.mismatch, empty.cosine) == (0, 0, 1)


ZEROS = {name: np.zeros(int(name[0]), name[1]) for name in ("3f", "4f", "3i", "3F")}


@pytest.mark.parametrize(("a", "b"), [("3f", "4f"), ("3f", "3i"), ("3F", "3F")])
def test_what_cannot_be_compared(a: str, b: str) -> None:
    """Other lengths, other types, complex numbers."""
    with pytest.raises(InputError):
        compare_arrays(ZEROS[a], ZEROS[b])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_units_and_errors(dtype: np.dtype) -> None:
    finfo, eps = ml_dtypes.finfo(dtype), 2.0 ** (1 - PRECISION[str(dtype)])
    subnormal = float(finfo.smallest_subnormal)
    at = np.array([1.0, 1.5, 2.0, float(finfo.smallest_normal), subnormal, 0.0], np.float64)
    assert ulp_unit(dtype, at).tolist() == [eps, eps, 2 * eps, *[subnormal] * 3]
    exact = np.random.default_rng(0).standard_normal(4000) * 10.0 ** np.linspace(-4, 4, 4000)
    if dtype != np.float64:  # rounding errs by half an ulp
        assert 0.49 < ulp_error(exact.astype(dtype), exact).max() <= 0.5 + 1e-9


def test_errors_of_special_values_and_at_another_magnitude() -> None:
    values = np.array([np.inf, np.inf, np.nan, 1.0, np.nan], np.float16)
    exact = np.array([1e6, 6e4, np.nan, np.nan, 1.0])
    assert ulp_error(values, exact).tolist() == [0, np.inf, 0, np.inf, np.inf]
    error = ulp_error(np.array([0.0], np.float32), np.array([2.0**-23]), np.array([1.0]))
    assert error.tolist() == [1.0]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 20))
def test_steps_count_applications_of_nextafter(start: float, steps: int) -> None:
    a = b = np.array([start], np.float32)
    moved = 0
    for _ in range(steps):
        following = np.nextafter(b, np.float32(np.inf))
        moved += int(following[0] != b[0])  # -0 and +0 are one number
        b = following
    if np.isfinite(b[0]):
        assert ulp_distance(a, b)[0] == ulp_distance(b, a)[0] == moved

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


def array(values: object, dtype: object) -> np.ndarray:
    return np.array(values, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_neighbours_are_one_ulp_apart(dtype: np.dtype) -> None:
    step = 2.0 ** (1 - PRECISION[str(dtype)])
    a = array([1.0, 1.0, -2.0, 1.0], dtype)
    b = array([1.0 + step, 1.0 - step / 2, -2.0 - 2 * step, 1.0 + 5 * step], dtype)
    assert ulp_distance(a, b).tolist() == [1, 1, 1, 5]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_across_zero_the_steps_add_up(dtype: np.dtype) -> None:
    tiny = array([1], f"u{dtype.itemsize}").view(dtype)  # the smallest subnormal
    assert ulp_distance(tiny, -tiny).tolist() == [2]
    zero = np.zeros(1, dtype)
    assert ulp_distance(zero, -zero).tolist() == [0]
    assert ulp_distance(tiny, zero).tolist() == [1]


def test_extreme_float64_do_not_wrap() -> None:
    top = array([np.finfo(np.float64).max], np.float64)
    steps = ulp_distance(top, -top)[0]
    assert steps == pytest.approx(2.0 * (2047 * 2.0**52 - 1), rel=1e-15)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype: np.dtype) -> None:
    inf, nan = math.inf, math.nan
    a = array([nan, nan, inf, inf, -inf, 1.0], dtype)
    b = array([nan, 1.0, inf, -inf, 3.0, nan], dtype)
    assert ulp_distance(a, b).tolist() == [0, inf, 0, inf, inf, inf]
    metrics = compare_arrays(a, b)
    assert not metrics.nan_inf_agree
    assert metrics.max_abs == metrics.max_ulp == metrics.max_rel == inf
    assert metrics.mismatch == pytest.approx(4 / 6)
    assert dict(metrics.ulp_histogram) == {"0": 2, "inf": 4}
    same = compare_arrays(a, a)
    assert same.nan_inf_agree
    assert (same.max_abs, same.max_ulp, same.mismatch, same.cosine) == (0, 0, 0, 1)


def test_largest_finite_is_no_neighbour_of_infinity() -> None:
    top = np.finfo(np.float16).max
    assert ulp_distance(array([top], np.float16), array([np.inf], np.float16))[0] == np.inf


def test_histogram_buckets() -> None:
    steps = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17]
    a = np.ones(len(steps), np.float32)
    b = (1.0 + np.array(steps) * 2.0**-23).astype(np.float32)
    expected = [("0", 1), ("1", 1), ("2", 1), ("3-4", 2), ("5-8", 2), ("9-16", 2), ("17-32", 1)]
    assert list(compare_arrays(a, b).ulp_histogram) == expected


def test_relative_cosine_and_mean() -> None:
    a, b = array([3.0, 0.0, 1.0], np.float64), array([4.0, 0.0, 1.0], np.float64)
    metrics = compare_arrays(a, b)
    assert metrics.max_abs == 1.0
    assert metrics.max_rel == 0.25
    assert metrics.cosine == pytest.approx(13 / math.sqrt(10 * 17))
    assert metrics.shape == (3,)
    assert metrics.dtype == "float64"
    assert compare_arrays(a, np.zeros(3)).max_rel == math.inf
    assert compare_arrays(a, np.zeros(3)).cosine == 0.0
    assert compare_arrays(a * 1e300, b * 1e-300).cosine == pytest.approx(metrics.cosine)


def test_integers_booleans_strings() -> None:
    top, low = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    assert compare_arrays(array([top], np.int64), array([low], np.int64)).max_abs == 2.0**64
    unsigned = compare_arrays(array([3], np.uint8), array([5], np.uint8))
    assert (unsigned.max_abs, unsigned.max_ulp, unsigned.mismatch) == (2, 2, 1)
    assert compare_arrays(array([True, False], bool), array([True, True], bool)).mismatch == 0.5
    text = compare_arrays(array(["a", "bc"], object), array(["a", "bd"], object))
    assert (text.max_ulp, text.mismatch, text.dtype) == (math.inf, 0.5, "string")
    assert compare_arrays(array(["a"], "U1"), array(["a"], object)).max_abs == 0


def test_empty_arrays_are_equal() -> None:
    metrics = compare_arrays(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32))
    assert (metrics.max_ulp, metrics.mismatch, metrics.cosine) == (0, 0, 1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32)),
        (np.zeros(3, np.float32), np.zeros(3, np.int32)),
        (np.zeros(3, np.complex64), np.zeros(3, np.complex64)),
    ],
)
def test_what_cannot_be_compared(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(InputError):
        compare_arrays(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unit_agrees_with_the_next_number(dtype: np.dtype) -> None:
    finfo = ml_dtypes.finfo(dtype)
    subnormal = float(finfo.smallest_subnormal)
    at = array([1.0, 1.5, 2.0, float(finfo.smallest_normal), subnormal, 0.0], np.float64)
    eps = 2.0 ** (1 - PRECISION[str(dtype)])
    expected = [eps, eps, 2 * eps, subnormal, subnormal, subnormal]
    assert ulp_unit(dtype, at).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_rounding_errs_by_half_an_ulp(dtype: np.dtype) -> None:
    exact = np.random.default_rng(0).standard_normal(4000) * 10.0 ** np.linspace(-4, 4, 4000)
    error = ulp_error(exact.astype(dtype), exact)
    assert 0.49 < error.max() <= 0.5 + 1e-9


def test_error_of_special_values() -> None:
    values = array([np.inf, np.inf, np.nan, 1.0, np.nan], np.float16)
    exact = np.array([1e6, 6e4, np.nan, np.nan, 1.0])
    assert ulp_error(values, exact).tolist() == [0, np.inf, 0, np.inf, np.inf]


def test_error_at_another_magnitude() -> None:
    error = ulp_error(array([0.0], np.float32), np.array([2.0**-23]), np.array([1.0]))
    assert error.tolist() == [1.0]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 1000))
def test_steps_count_applications_of_nextafter(start: float, steps: int) -> None:
    a = b = np.array([start], np.float32)
    moved = 0
    for _ in range(min(steps, 20)):
        following = np.nextafter(b, np.float32(np.inf))
        # -0 and +0 are one number.
        moved += int(following[0] != b[0])
        b = following
    if np.isfinite(b[0]):
        assert ulp_distance(a, b)[0] == moved
        assert ulp_distance(b, a)[0] == moved

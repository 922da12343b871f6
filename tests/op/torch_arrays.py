"""PyTorch tensors and NumPy arrays of the same bits, and how close two norms must be."""

from __future__ import annotations

import numpy as np

from rmsnorm_export.compare.pytorch import to_array as to_numpy
from rmsnorm_export.compare.pytorch import to_tensor as to_torch
from rmsnorm_export.op.spec import FLOAT
from tests.op.norm_models import steps

__all__ = ["assert_close", "to_numpy", "to_torch"]


def assert_close(got: np.ndarray, expected: np.ndarray, dtype: int, n: int) -> None:
    """PyTorch sums in another order and multiplies by rsqrt instead of dividing.

    float32: a sum of n squares in any order is within n * 2**-24 relative, half of that after the
    root, and rsqrt, product and gain add a few roundings. Half types: that difference moves a
    rounding to T across a midpoint now and then, by one step; the product with the gain may turn
    one step of the normalised value into two.
    """
    if dtype == FLOAT:
        np.testing.assert_allclose(got, expected, rtol=(n / 2 + 8) * 2.0**-24, atol=0)
        return
    distance = steps(got, expected)
    assert distance.max() <= 2
    assert (distance > 0).mean() <= 0.05

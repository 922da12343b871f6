"""PyTorch tensors and NumPy arrays of the same bits, and how close two norms must be."""

from __future__ import annotations

import numpy as np
import torch

from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, FLOAT
from tests.op.norm_models import steps


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == numpy_dtype(BFLOAT16):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
    return tensor.numpy()


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

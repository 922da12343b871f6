"""PyTorch tensors and NumPy arrays of the same bits."""

from rmsnorm_export.compare.pytorch import to_array as to_numpy
from rmsnorm_export.compare.pytorch import to_tensor as to_torch

__all__ = ["to_numpy", "to_torch"]

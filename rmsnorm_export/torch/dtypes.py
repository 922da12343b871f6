"""The float types in PyTorch: those that the operator takes."""

from __future__ import annotations

import torch

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

TORCH_TYPES: dict[int, torch.dtype] = {
    FLOAT: torch.float32,
    FLOAT16: torch.float16,
    DOUBLE: torch.float64,
    BFLOAT16: torch.bfloat16,
}
"""ONNX element type -> PyTorch type, for the types that the operator takes."""

ELEMENT_TYPES = {dtype: element_type for element_type, dtype in TORCH_TYPES.items()}


def dtype_name(dtype: torch.dtype | None) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


FLOATS = frozenset(map(dtype_name, TORCH_TYPES.values()))
"""Names of the float types, e.g. ``bfloat16``."""

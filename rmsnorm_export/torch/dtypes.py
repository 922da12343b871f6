"""The float types in PyTorch: those that the operator takes."""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from rmsnorm_export.op.spec import FLOAT_TYPES

TORCH_TYPES = {code: to_torch_dtype(ir.DataType(code)) for code in sorted(FLOAT_TYPES)}
"""ONNX element type -> PyTorch type, for the types that the operator takes."""

ELEMENT_TYPES = {dtype: element_type for element_type, dtype in TORCH_TYPES.items()}


def dtype_name(dtype: torch.dtype | None) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")

"""Weights of several graphs, stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array


def share_weights(models: Iterable[ir.Model]) -> None:
    """Let equal weights that fusions have made in several graphs be one piece of memory."""
    first: dict[Hashable, Array] = {}
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
                memory = np.ascontiguousarray(tensor.raw).reshape(-1).view(np.uint8)
                key = tensor.dtype, tuple(tensor.shape), hashlib.sha256(memory.data).digest()
                shared = first.setdefault(key, tensor.raw)
                value.const_value = ir.Tensor(shared, dtype=tensor.dtype, name=tensor.name)

"""Weights of several graphs, stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir


def share_weights(models: Iterable[ir.Model]) -> None:
    """Let equal weights that fusions have made in several graphs be one piece of memory."""
    first: dict[Hashable, Any] = {}
    for value in (value for model in models for value in model.graph.initializers.values()):
        tensor = value.const_value
        # What PyTorch holds is its own memory already.
        if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
            key = tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).digest()
            shared = first.setdefault(key, tensor.raw)
            value.const_value = ir.Tensor(shared, dtype=tensor.dtype, name=tensor.name)

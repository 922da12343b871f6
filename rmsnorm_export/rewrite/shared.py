"""Weights of several graphs, stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from typing import Any

import onnx_ir as ir


def share_weights(models: Iterable[ir.Model]) -> None:
    """Let equal weights that fusions have made in several graphs be one piece of memory."""
    first: dict[Hashable, ir.Tensor[Any]] = {}
    for value in (value for model in models for value in model.graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, ir.Tensor):
            key = tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).digest()
            shared = first.setdefault(key, tensor)
            value.const_value = ir.Tensor(shared.raw, dtype=tensor.dtype, name=tensor.name)

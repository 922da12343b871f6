"""A model of bfloat16 as one of float32, with the same weights: what stands in for it where a
runtime has no bfloat16 kernels."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel, load_model
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.graph.tensors import tensor_slots

_TYPES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")
"""Attributes of operators that hold an element type."""


def save_as_float32(source: LoadedModel, path: Path) -> bool:
    """Write the model with float32 wherever it has bfloat16; nothing where it has none.

    Weights are widened exactly, one at a time; what was rounded to bfloat16 on the way is not
    rounded any more.

    Raises:
        InputError: there is no room for it.
    """
    model = load_model(source.model).model
    found = False
    for slot in list(tensor_slots(model)):
        if slot.tensor.dtype == ir.DataType.BFLOAT16:
            slot.put(_widened(slot.tensor))
            found = True
    for graph in all_graphs(model):
        for node in graph:
            for name in _TYPES:
                attribute = node.attributes.get(name)
                if attribute is not None and attribute.value == ir.DataType.BFLOAT16:
                    node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT.value)
                    found = True
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            if value.dtype == ir.DataType.BFLOAT16:
                value.type = copy.copy(value.type)  # which the source has, too
                value.dtype = ir.DataType.FLOAT
                found = True
    if found:
        save_model(model, path)
    return found


def _widened(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    def read() -> ir.TensorProtocol:
        return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=shape, name=tensor.name)

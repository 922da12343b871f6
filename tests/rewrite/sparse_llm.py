"""A model whose weights are holes in one sparse file: large, yet nothing on disk."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
from onnx import TensorProto, helper

_LAYERS, _HIDDEN, _WIDE = 126, 16384, 79872
_LAYER = {
    "norm": (_HIDDEN,), "query": (_HIDDEN, _HIDDEN), "output": (_HIDDEN, _HIDDEN),
    "post_norm": (_HIDDEN,), "up": (_HIDDEN, _WIDE), "down": (_WIDE, _HIDDEN),
}  # fmt: skip


def make_sparse_llm(folder: Path) -> Path:
    """Write a bf16 model with the layers and weights of one of 405 billion parameters.

    Each weight is multiplied once; the 795 GB are one file of ``truncate``, at increasing offsets.

    Returns:
        The path of the model file.
    """
    row = [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["batch", _HIDDEN])]
    graph, offset = helper.make_graph([], "decoder", row, []), 0
    for index in range(_LAYERS):
        for weight, dims in _LAYER.items():
            name, size = f"layers.{index}.{weight}", 2 * math.prod(dims)
            source = graph.node[-1].output[0] if graph.node else "x"
            kind = "MatMul" if len(dims) > 1 else "Mul"
            graph.node.append(helper.make_node(kind, [source, name], [f"{name}.out"], name))
            tensor = graph.initializer.add(name=name, data_type=16, dims=dims, data_location=1)
            place = {"location": "llm.data", "offset": str(offset), "length": str(size)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            offset += size
    graph.output.add(name=graph.node[-1].output[0]).type.CopyFrom(row[0].type)
    with (folder / "llm.data").open("wb") as file:
        file.truncate(offset)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "llm.onnx")
    return folder / "llm.onnx"

"""onnxscript: conv3d without a bias is given one of shape [channels, 2]

The zeros that stand for the missing bias are expanded to the channels joined with a 2; ONNX Runtime
refuses the node: bias must be a 1D tensor. The patch embeddings of Qwen2-VL are such a convolution.
Expected: no bias, or one of the shape [channels], as for conv1d and conv2d.
"""

import logging

import onnx
import torch

SEEN = "onnxscript 0.7.2"

logging.disable(logging.WARNING)
model = torch.nn.Conv3d(3, 8, kernel_size=2, bias=False).eval()
x = torch.randn(1, 3, 2, 2, 2)
model = torch.onnx.export(model, (x,), dynamo=True, optimize=False, verbose=False).model_proto
graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
(node,) = [node for node in graph.node if node.op_type == "Conv"]
shapes = {one.name: list(one.dims) for one in graph.initializer}
for one in graph.value_info:
    shapes[one.name] = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
bias = shapes[node.input[2]] if len(node.input) > 2 else None
print("shape of the bias:", bias)
raise SystemExit(bias not in (None, [8]))

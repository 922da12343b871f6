"""torch: RMSNorm with a weight of another type is exported with the wrong type of output

At opset 23 X is float32 and scale float16; RMSNormalization's output then has the type of scale,
and the file says float32: the checker refuses it, and ONNX Runtime does not load it. Expected: a
Cast of scale to the type of X, and of the result where eager PyTorch gives another type.
"""

import logging

import onnx
import torch

SEEN = "torch 2.13.0"

logging.disable(logging.WARNING)
model = torch.nn.RMSNorm(8).half().eval()
x = torch.randn(2, 8)
program = torch.onnx.export(model, (x,), opset_version=23, dynamo=True, verbose=False)
(node,) = [node for node in program.model.graph if node.op_type == "RMSNormalization"]
types = [value.dtype.name for value in (*node.inputs, *node.outputs)]
print("eager gives", model(x).dtype, "; X, scale, Y in the file:", types)
try:
    onnx.checker.check_model(program.model_proto, full_check=True)
except onnx.shape_inference.InferenceError as error:
    print(error)
    raise SystemExit(1) from error

"""onnxruntime: the transformers optimizer fuses a norm over channels to one over all later axes

A norm over axis 1 of [1, 8, 5, 5] becomes SimplifiedLayerNormalization with axis 1, which is a
norm over axes 1, 2 and 3: the numbers are wrong, without a warning. Timm's RmsNorm2d is such a
norm. Expected: no fusion where the reduced axis is not the last one.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers import optimizer

SEEN = "onnxruntime 1.31.1"

SHAPE = [1, 8, 5, 5]
constants = {
    "two": np.array(2, np.float32),
    "axes": np.array([1], np.int64),
    "epsilon": np.array(1e-6, np.float32),
    "scale": np.ones((8, 1, 1), np.float32),
}
nodes = [
    helper.make_node("Pow", ["x", "two"], ["square"]),
    helper.make_node("ReduceMean", ["square", "axes"], ["mean"], keepdims=1),
    helper.make_node("Add", ["mean", "epsilon"], ["sum"]),
    helper.make_node("Sqrt", ["sum"], ["rms"]),
    helper.make_node("Div", ["x", "rms"], ["normal"]),
    helper.make_node("Mul", ["normal", "scale"], ["y"]),
]
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def answer(proto: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    return session.run(None, {"x": x})[0]


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "model.onnx")
    onnx.save(model, path)
    fused = optimizer.optimize_model(
        str(path), model_type="bert", num_heads=0, hidden_size=0, opt_level=0
    ).model
difference = float(np.abs(answer(model) - answer(fused)).max())
print("nodes after:", [node.op_type for node in fused.graph.node], "off by", difference)
raise SystemExit(difference > 1e-3)

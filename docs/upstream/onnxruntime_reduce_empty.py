"""onnxruntime: reductions over a negative axis of an empty tensor keep the shape of the input

ReduceMean of float32[0, 4] over axis -1 gives [0, 4], over axis 1 it gives [0, 1]. So do
ReduceSum, ReduceMax, ReduceSumSquare and ReduceL2, with keepdims and without. What follows then
cannot broadcast, or runs with a wrong shape. Expected: the same shape for axis -1 as for axis 1.
(CPU)
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SEEN = "onnxruntime 1.31.1"


def shape(op: str, axis: int, keepdims: int) -> tuple[int, ...]:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "axes"], ["y"], keepdims=keepdims)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([axis], np.int64), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": np.zeros((0, 4), np.float32)})[0].shape


wrong = 0
for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceSumSquare", "ReduceL2"):
    for keepdims in (0, 1):
        last, first = shape(op, -1, keepdims), shape(op, 1, keepdims)
        print(f"{op}, keepdims {keepdims}: axis -1 {last}, axis 1 {first}")
        wrong += last != first
raise SystemExit(wrong > 0)

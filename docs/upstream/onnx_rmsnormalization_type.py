"""onnx: RMSNormalization infers the type of X for Y, where the schema says that of scale

In opset 23 the output is `Y: V`, and V is the type of scale. Shape inference gives Y the type of
X, the reference evaluator too, and the function body multiplies the two types, so that ONNX
Runtime 1.31.1 does not load the model. A model whose Y has the type of the schema fails strict
inference. Expected: the type of scale (or a schema that says `Y: T`), and a body with a Cast.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper, shape_inference

SEEN = "onnx 1.23.2"

graph = helper.make_graph(
    [
        helper.make_node("RMSNormalization", ["x", "scale"], ["n"]),
        helper.make_node("Identity", ["n"], ["y"]),
    ],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    [numpy_helper.from_array(np.ones(4, np.float32), "scale")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
inferred = shape_inference.infer_shapes(model).graph.value_info
types = {value.name: value.type.tensor_type.elem_type for value in inferred}
print("X float16, scale float32, Y by the schema float32, inferred:",
      TensorProto.DataType.Name(types["n"]))  # fmt: skip
raise SystemExit(types["n"] != TensorProto.FLOAT)

"""onnxsim: an input that has a default value is folded away

From IR version 4 on an initializer that is also a graph input is a default, which a caller may
replace. `simplify` computes with the default and removes the input: the caller's value is lost, or
refused. Expected: such an initializer is no constant, as in ONNX Runtime.
"""

import numpy as np
import onnxsim
from onnx import TensorProto, helper, numpy_helper

SEEN = "onnxsim 0.8.1"

values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xcy"}
graph = helper.make_graph(
    [helper.make_node("Neg", ["c"], ["n"]), helper.make_node("Mul", ["x", "n"], ["y"])],
    "g",
    [values["x"], values["c"]],
    [values["y"]],
    [numpy_helper.from_array(np.ones(2, np.float32), "c")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
simplified, _ = onnxsim.simplify(model)
inputs = [value.name for value in simplified.graph.input]
print("inputs before: ['x', 'c'], after:", inputs)
raise SystemExit("c" not in inputs)

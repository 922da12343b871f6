"""onnxruntime: Sigmoid of float32 on the CPU is off by a factor of 7 at -17.7

Where sigmoid is small, the result has no correct digit: sigmoid(-17.69128) is 2.07e-8, and comes
out as 1.49e-7. Silu and every gate inherit it. Expected: a few ulp, as PyTorch has it on the same
CPU (2.4), by exp(x) / (1 + exp(x)) for negative x.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

SEEN = "onnxruntime 1.31.1"

values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "g", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)
x = np.linspace(-17.8, -1, 100001, dtype=np.float32)
y = session.run(None, {"x": x})[0].astype(np.float64)
exact = 1 / (1 + np.exp(-x.astype(np.float64)))
error = np.abs(y / exact - 1)
worst = int(error.argmax())
print(
    f"sigmoid({x[worst]}) is {exact[worst]:.6g}, computed {y[worst]:.6g}: off by {error[worst]:.2g}"
)
raise SystemExit(bool(error[worst] > 1e-3))

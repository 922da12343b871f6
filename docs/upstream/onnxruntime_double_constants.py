"""onnxruntime: nodes with a float64 constant that is 0 or 1 in float32 are removed: wrong numbers

NoopElimination reads the constant of Add, Sub, Mul and Div as a float32. x + 1e-50 becomes x, so
that a norm with this epsilon divides rows of zeros by 0; x * 1.00000001 becomes x. With
ORT_DISABLE_ALL they are computed. Expected: a node is removed where its constant is 0 or 1. (CPU,
the default level)
"""

import numpy as np
import onnxruntime
from onnx import parser

SEEN = "onnxruntime 1.31.1"

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (double[4] x) => (double[4] sum, double[4] product)
<double small = {1e-50}, double near = {1.00000001}> {
    size = Abs(x)
    larger = Add(size, small)
    times = Mul(size, near)
    sum = Abs(larger)
    product = Abs(times)
}"""

model = parser.parse_model(MODEL).SerializeToString()
results = []
for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results.append(session.run(None, {"x": np.arange(4.0)}))
    print(level, *(array.tolist() for array in results[-1]))
raise SystemExit(not all(map(np.array_equal, *results)))

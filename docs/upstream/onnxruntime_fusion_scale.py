"""onnxruntime: the fusion of a norm takes its own rows for the scale, or a tensor that is longer

SimplifiedLayerNormFusion takes whatever operand of the Mul behind a norm has as many axes as were
reduced. A normalised vector has one, and it becomes the scale of its own norm: "Invalid model. Node
input 'v' is not a graph input, initializer, or output of a previous node." A row of one that is
multiplied with five numbers becomes a norm with a scale of five, which fails when it is run. With
ORT_DISABLE_ALL both run. Expected: the scale is the other operand, and as long as the row. (CPU,
the default level)
"""

import numpy as np
import onnxruntime
from onnx import parser

SEEN = "onnxruntime 1.31.1"

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[{x}] x) => (float[{y}] y)
<float two = {{2}}, float epsilon = {{1e-6}}, float{w}> {{
    square = Pow(x, two)
    mean = ReduceMean <axes=[-1]> (square)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    v = Div(x, root)
    y = Mul(v, w)
}}"""
CASES = {
    "a vector times a number": (np.ones(4), {"x": "4", "y": "4", "w": " w = {3}"}),
    "rows of one times five numbers": (
        np.ones((2, 1)),
        {"x": "2,1", "y": "2,5", "w": "[5] w = {1, 2, 3, 4, 5}"},
    ),
}

failed = 0
for name, (rows, words) in CASES.items():
    model = parser.parse_model(MODEL.format(**words)).SerializeToString()
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
            session.run(None, {"x": rows.astype(np.float32)})
            print(f"{name}, {level}: runs")
        except Exception as error:
            print(f"{name}, {level}: {error}")
            failed += 1
raise SystemExit(failed > 0)

"""onnxruntime: the transformers optimizer fuses a norm over channels to one over all later axes

A norm over axis 1 of [1, 8, 5, 5] becomes SimplifiedLayerNormalization with axis 1, which is a
norm over axes 1, 2 and 3: the numbers are wrong, without a warning. Timm's RmsNorm2d is such a
norm. Expected: no fusion where the reduced axis is not the last one.
"""

import numpy as np
import onnxruntime
from onnx import ModelProto, numpy_helper, parser
from onnxruntime.transformers import optimizer

SEEN = "onnxruntime 1.31.1"

model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
g (float[1,8,5,5] x) => (float[1,8,5,5] y)
<float two = {2}, float epsilon = {1e-6}, int64[1] axes = {1}> {
    square = Pow(x, two)
    mean = ReduceMean <keepdims = 1> (square, axes)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    normal = Div(x, root)
    y = Mul(normal, scale)
}""")
model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 1, 1), np.float32), "scale"))


def answer(proto: ModelProto) -> np.ndarray:
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    return session.run(None, {"x": x})[0]


x = np.random.default_rng(0).standard_normal((1, 8, 5, 5)).astype(np.float32)
right = answer(model)
fused = optimizer.optimize_model(model, num_heads=0, hidden_size=0, opt_level=0).model
difference = float(np.abs(right - answer(fused)).max())
print("nodes after:", [node.op_type for node in fused.graph.node], "off by", difference)
raise SystemExit(difference > 1e-3)

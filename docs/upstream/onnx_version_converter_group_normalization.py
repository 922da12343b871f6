"""onnx: version_converter.convert_version keeps scale and bias of GroupNormalization of opset 18

At opset 18, where the operator is deprecated, they have an element for each group, at opset 21 for
each channel. The converted node has the same inputs: ONNX Runtime 1.31 does not load it.
Expected: each element is repeated over the channels of its group, or an error.
"""

import numpy as np
from onnx import parser, version_converter
from onnx.reference import ReferenceEvaluator

SEEN = "onnx 1.23.2"

model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
g (float[1, 4, 3] x) => (float[1, 4, 3] y) <float[2] scale = {1, 2}, float[2] bias = {0, 1}> {
    y = GroupNormalization <num_groups = 2> (x, scale, bias)
}""")
x = np.random.default_rng(0).standard_normal((1, 4, 3)).astype(np.float32)
groups = x.reshape(2, 6)
centred = groups - groups.mean(1, keepdims=True)
rows = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
right = (rows * [[1], [2]] + [[0], [1]]).reshape(x.shape)
converted = version_converter.convert_version(model, 21)
shapes = {one.name: list(one.dims) for one in converted.graph.initializer}
print("4 channels, 2 groups; after:", [node.op_type for node in converted.graph.node], shapes)
try:
    (computed,) = ReferenceEvaluator(converted).run(None, {"x": x})
    is_right = np.allclose(computed, right, atol=1e-4)
    print("right:", right.reshape(-1).tolist(), "after:", computed.reshape(-1).tolist())
except Exception as error:
    is_right = False
    print("the reference evaluator does not run it:", type(error).__name__)
raise SystemExit(int(not is_right))

"""onnx: version_converter.convert_version gives a linear Resize of opset 10 other coordinates

At opset 10 element i of the output lies at i / scale of the input; at opset 11 that is
coordinate_transformation_mode "asymmetric". The converted node has no such attribute, and the
default is "half_pixel": (i + 0.5) / scale - 0.5. Upsample of opset 9 is converted to the same node.
Expected: the attribute is set.
"""

import numpy as np
import onnx
from onnx import parser, version_converter
from onnx.reference import ReferenceEvaluator

SEEN = "onnx 1.23.2"

model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 10]>
g (float[1, 1, 1, 4] x) => (float[1, 1, 1, 8] y) <float[4] scales = {1, 1, 1, 2}> {
    y = Resize <mode = "linear"> (x, scales)
}""")
onnx.checker.check_model(model, full_check=True)
x = np.array([0, 1, 4, 9], np.float32).reshape(1, 1, 1, 4)
right = np.interp(np.arange(8) / 2, np.arange(4), x.reshape(-1))
converted = version_converter.convert_version(model, 11)
(computed,) = ReferenceEvaluator(converted).run(None, {"x": x})
node = converted.graph.node[-1]
print(
    "attributes after:", {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
)
print("right:", right.tolist(), "after:", computed.reshape(-1).tolist())
raise SystemExit(int(not np.allclose(computed.reshape(-1), right)))

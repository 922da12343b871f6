"""onnx: version_converter.convert_version keeps Hardmax of opset 11, another function at opset 13

Up to opset 11 Hardmax takes all axes from `axis` on as one row, from opset 13 on `axis` alone. The
converted model has the same node, so that there is a 1 for each row of the last axes and not one
for each of the flattened rows. Softmax and LogSoftmax, which changed in the same way, are written
out by the converter. Expected: the same for Hardmax, or an error.
"""

import numpy as np
import onnx
from onnx import parser, version_converter
from onnx.reference import ReferenceEvaluator

SEEN = "onnx 1.23.2"

model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 11]>
g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax <axis = 1> (x) }""")
onnx.checker.check_model(model, full_check=True)
x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
right = np.zeros((2, 12), np.float32)
right[np.arange(2), x.reshape(2, 12).argmax(1)] = 1
converted = version_converter.convert_version(model, 13)
(computed,) = ReferenceEvaluator(converted).run(None, {"x": x})
print("nodes after:", [node.op_type for node in converted.graph.node])
print("ones before:", int(right.sum()), "after:", int(computed.sum()))
raise SystemExit(int(not np.array_equal(computed, right.reshape(x.shape))))

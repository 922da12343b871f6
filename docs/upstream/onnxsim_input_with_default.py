"""onnxsim: an input that has a default value is folded away

From IR version 4 on an initializer that is also a graph input is a default, which a caller may
replace. `simplify` computes with the default and removes the input: the caller's value is lost, or
refused. Expected: such an initializer is no constant, as in ONNX Runtime.
"""

import onnxsim
from onnx import parser

SEEN = "onnxsim 0.8.1"

model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
g (float[2] x, float[2] c = {1, 1}) => (float[2] y) {
    n = Neg(c)
    y = Mul(x, n)
}""")
simplified, _ = onnxsim.simplify(model)
inputs = [value.name for value in simplified.graph.input]
print("inputs before: ['x', 'c'], after:", inputs)
raise SystemExit("c" not in inputs)

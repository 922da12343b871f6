"""onnxruntime: the fusion of a norm removes a node that is read: the model does not load

A norm whose gain is computed (here: cast) and multiplied with the inverse before x:
SimplifiedLayerNormFusion makes the Cast an input of its node, and removes it. "Invalid model. Node
input 'gain' is not a graph input, initializer, or output of a previous node." With ORT_DISABLE_ALL
the model loads. Expected: the fusion leaves such a norm alone, or keeps the node. (CPU, the default
level)
"""

import onnxruntime
from onnx import parser

SEEN = "onnxruntime 1.31.1"

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,5,8] x, float[2,5,8] c) => (float[2,5,8] y)
<float two = {2}, float epsilon = {1e-6}, float one = {1}> {
    h = Tanh(x)
    gain16 = Tanh(c)
    wide = Cast <to=1> (h)
    gain = Cast <to=1> (gain16)
    square = Pow(wide, two)
    mean = ReduceMean <axes=[-1]> (square)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    inverse = Div(one, root)
    scale = Mul(gain, inverse)
    narrow = Cast <to=1> (scale)
    norm = Mul(h, narrow)
    y = Relu(norm)
}"""

model = parser.parse_model(MODEL).SerializeToString()
plain = onnxruntime.SessionOptions()
plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
onnxruntime.InferenceSession(model, plain, providers=["CPUExecutionProvider"])
print("without optimizations it loads")
quiet = onnxruntime.SessionOptions()
quiet.log_severity_level = 4
try:
    onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])
except Exception as error:
    print(f"at the default level: {error}")
    raise SystemExit(1) from None
print("at the default level it loads")

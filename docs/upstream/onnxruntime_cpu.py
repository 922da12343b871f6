"""onnxruntime: models that are wrong, or not loaded, on the CPU at the default level

reduce_nan: ReduceMax of [1, NaN, 2, 3] is 3, that of [NaN, 1, 2, 3] is NaN; so does ReduceMin. What
is scaled by the largest of a row (codes of int8 and FP8) then hides a NaN. Expected: NaN wherever
it is, as in NumPy, PyTorch and the reference evaluator of onnx, and as Max of two tensors here.

sigmoid: where Sigmoid of float32 is small, the result has no correct digit: that of -17.69128 is
2.07e-8, and comes out as 1.49e-7. Silu and every gate inherit it. Expected: a few ulp, as PyTorch
has it on the same CPU (2.4), by exp(x) / (1 + exp(x)) for negative x.

double_constants: NoopElimination reads the constant of Add, Sub, Mul and Div as a float32. What
adds 1e-50 is removed, so that a norm with this epsilon divides rows of zeros by 0, and so is what
multiplies by 1.00000001. With ORT_DISABLE_ALL they are computed. Expected: a node is removed where
its constant is 0 or 1.

removed_input: a norm whose gain is computed (here: cast) and multiplied with the inverse before x.
SimplifiedLayerNormFusion makes the Cast an input of its node, and removes it: "Invalid model. Node
input 'gain' is not a graph input, initializer, or output of a previous node." With ORT_DISABLE_ALL
the model loads. Expected: the fusion leaves such a norm alone, or keeps the node.

own_rows: that fusion takes whatever operand of the Mul behind a norm has as many axes as were
reduced. A normalised vector has one, and becomes the scale of its own norm: "Invalid model. Node
input 'v' is not a graph input ...". Expected: the scale is the other operand.

long_scale: a row of one that is multiplied with five numbers becomes a norm with a scale of five,
which fails when it is run. Expected: the scale is as long as the row.
"""

import sys

import numpy as np
import onnxruntime
from onnx import parser

SEEN = "onnxruntime 1.31.1"

ROWS = np.tile(np.arange(1, 9, dtype=np.float32), (8, 1))
np.fill_diagonal(ROWS, np.nan)
SMALL = np.linspace(-17.8, -1, 100001, dtype=np.float32)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
NORM = """<float two = {2}, float epsilon = {1e-6}, float SCALE> {
    square = Pow(x, two)
    mean = ReduceMean <axes=[-1]> (square)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    v = Div(x, root)
    y = Mul(v, w)
}"""
CASES = {
    "reduce_nan": ("""g (float[8,8] x) => (float[8] y, float[8] z) {
        y = ReduceMax <axes=[-1], keepdims=0> (x)
        z = ReduceMin <axes=[-1], keepdims=0> (x)
    }""", ROWS, [np.full(8, np.nan)] * 2),
    "sigmoid": ("g (float[N] x) => (float[N] y) { y = Sigmoid(x) }",
        SMALL, [1 / (1 + np.exp(-SMALL.astype(np.float64)))]),
    "double_constants": ("""g (double[4] x) => (double[4] y, double[4] z)
    <double small = {1e-50}, double near = {1.00000001}> {
        size = Abs(x)
        larger = Add(size, small)
        times = Mul(size, near)
        y = Abs(larger)
        z = Abs(times)
    }""", np.arange(4.0), None),
    "removed_input": ("""g (float[2,5,8] x) => (float[2,5,8] y)
    <float two = {2}, float epsilon = {1e-6}, float one = {1}> {
        h = Tanh(x)
        gain16 = Tanh(x)
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
    }""", np.ones((2, 5, 8), np.float32), None),
    "own_rows": ("g (float[4] x) => (float[4] y)" + NORM.replace("SCALE", "w = {3}"),
        np.ones(4, np.float32), None),
    "long_scale": ("g (float[2,1] x) => (float[2,5] y)"
        + NORM.replace("SCALE", "[5] w = {1, 2, 3, 4, 5}"), np.ones((2, 1), np.float32), None),
}  # fmt: skip
"""By name: a model, its input, and what is right: else what it gives without optimizations."""


def run(text: str, x: np.ndarray, level: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    model = parser.parse_model(HEAD + text).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


shown = 0
for name in sys.argv[1:] or CASES:
    text, x, right = CASES[name]
    right = right or run(text, x, "ORT_DISABLE_ALL")
    relative = 1e-12 if x.dtype == np.float64 else 1e-3
    try:
        wrong = [
            ~np.isclose(found, expected, rtol=relative, atol=0, equal_nan=True)
            for found, expected in zip(run(text, x, "ORT_ENABLE_ALL"), right, strict=True)
        ]
        print(f"{name}: {sum(map(np.count_nonzero, wrong))} numbers are wrong")
        shown += any(map(np.any, wrong))
    except Exception as error:
        print(f"{name}: {error}")
        shown += 1
raise SystemExit(shown > 0)

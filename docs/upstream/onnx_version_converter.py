"""onnx: version_converter.convert_version writes a model that computes something else, or nothing

functions: the functions of a model are dropped, and no runtime loads what calls them. Expected:
they are kept (and converted), or an error.

hardmax: up to opset 11 Hardmax takes all axes from `axis` on as one row, from opset 13 on `axis`
alone. The node is kept, so that there is a 1 for each row of the last axes. Softmax, which changed
in the same way, is written out by the converter. Expected: the same, or an error.

resize: at opset 10 element i of the output lies at i / scale of the input; at opset 11 that is
coordinate_transformation_mode "asymmetric". The converted node has no such attribute, and the
default is "half_pixel". Upsample of opset 9 becomes the same node. Expected: the attribute is set.

group_norm: scale and bias of GroupNormalization have an element for each group at opset 18, where
the operator is deprecated, and for each channel at opset 21. The node keeps its inputs, and ONNX
Runtime 1.31 does not load it. Expected: each element is repeated over its group, or an error.
"""

import sys

import numpy as np
from onnx import parser, printer, version_converter
from onnx.reference import ReferenceEvaluator

SEEN = "onnx 1.23.2"


def grouped(x: np.ndarray) -> np.ndarray:
    groups = x.reshape(2, 6)
    rows = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-5)
    return (rows * [[1], [2]] + [[0], [1]]).reshape(x.shape)


CASES = {
    "functions": (21, """<ir_version: 8, opset_import: ["" : 18, "example" : 1]>
        g (float[2] x) => (float[2] y) { y = example.F (x) }
        <domain: "example", opset_import: ["" : 18]> F (x) => (y) { y = Neg (x) }""",
        np.negative),
    "hardmax": (13, """<ir_version: 8, opset_import: ["" : 11]>
        g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax <axis = 1> (x) }""",
        lambda x: np.eye(12)[x.reshape(2, 12).argmax(1)].reshape(x.shape)),
    "resize": (11, """<ir_version: 8, opset_import: ["" : 10]>
        g (float[4] x) => (float[8] y) <float[1] scales = {2}> {
            y = Resize <mode = "linear"> (x, scales) }""",
        lambda x: np.interp(np.arange(8) / 2, np.arange(4), x)),
    "group_norm": (21, """<ir_version: 8, opset_import: ["" : 18]>
        g (float[1, 4, 3] x) => (float[1, 4, 3] y)
        <float[2] scale = {1, 2}, float[2] bias = {0, 1}> {
            y = GroupNormalization <num_groups = 2> (x, scale, bias) }""",
        grouped),
}  # fmt: skip
"""By name: the opset that a model is converted to, the model, and what it computes."""

shown = 0
for name in sys.argv[1:] or CASES:
    opset, text, right = CASES[name]
    model = parser.parse_model(text)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    converted = version_converter.convert_version(model, opset)
    print(f"{name}, converted:", printer.to_text(converted))
    try:
        (y,) = ReferenceEvaluator(converted).run(None, {"x": x})
        is_right = np.allclose(y, right(x), atol=1e-4)
        print("right:", right(x).reshape(-1).tolist(), "computed:", y.reshape(-1).tolist())
    except Exception as error:
        is_right = False
        print("the reference evaluator does not run it:", repr(error))
    shown += not is_right
raise SystemExit(shown > 0)

"""Models in float16: a norm, and what stands around it where it is transposed and multiplied."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

_HALF = """square = Mul (X, X)
    mean = ReduceMean <keepdims = 1> (square, axes)
    sum = Add (mean, eps)
    root = Sqrt (sum)
    row = Div (X, root)"""
_WIDE = """wide = Cast <to = 1> (X)
    square = Mul (wide, wide)
    mean = ReduceMean <keepdims = 1> (square, axes)
    sum = Add (mean, eps32)
    root = Sqrt (sum)
    row = Div (wide, root)"""
_SUM = "h = Add (x, r)\n"
NORMS = {
    "half": f"{_HALF}\n n = Mul (row, scale)",
    "half, no scale": f"{_HALF}\n n = Identity (row)",
    "wide": f"{_WIDE}\n narrow = Cast <to = 10> (row)\n n = Mul (narrow, scale)",
    "wide, no scale": f"{_WIDE}\n n = Cast <to = 10> (row)",
    "scaled in float32": f"{_WIDE}\n s32 = Cast <to = 1> (scale)\n z = Mul (row, s32)\n"
    " n = Cast <to = 10> (z)",
    "residual": _SUM + f"{_HALF}\n n = Mul (row, scale)".replace("X", "h"),
    "residual, wide": _SUM
    + f"{_WIDE}\n narrow = Cast <to = 10> (row)\n n = Mul (narrow, scale)".replace("X", "h"),
}
"""From X (x, or the sum h of x and r) to n."""

_T = "t = Transpose <perm = [1, 0, 2]>"
PLACES = {
    "product": f"{_T} (n)\n y = MatMul (t, w)",
    "no transpose": "y = MatMul (n, w)",
    "turned": "t = Transpose <perm = [1, 2, 0]> (n)\n y = MatMul (t, v)",
    "rows and columns": "t = Transpose <perm = [0, 2, 1]> (n)\n y = MatMul (t, k)",
    "right operand": f"{_T} (n)\n y = MatMul (u, t)",
    "operands of one rank": f"{_T} (n)\n y = MatMul (t, w3)",
    "two products": f"{_T} (n)\n a = MatMul (t, w)\n b = MatMul (t, w)\n y = Add (a, b)",
    "read twice": f"{_T} (n)\n a = MatMul (t, w)\n b = MatMul (n, w)\n"
    " c = Transpose <perm = [1, 0, 2]> (b)\n y = Add (a, c)",
    "read by another kernel": f"{_T} (n)\n a = MatMul (t, w)\n b = Relu (t)\n c = MatMul (b, w)\n"
    " y = Add (a, c)",
    "transposed before": f"p = Sin (x)\n {_T} (p)\n NORM\n a = MatMul (t, w)\n b = MatMul (n, w)\n"
    " y = Add (a, b)",
    "bias": f"{_T} (n)\n a = MatMul (t, w)\n y = Add (a, bias)",
    "copy before": f"q = Identity (n)\n {_T} (q)\n y = MatMul (t, w)",
    "copy behind": f"{_T} (n)\n q = Dropout (t)\n y = MatMul (q, w)",
    "one times": f"{_T} (n)\n q = Mul (one, t)\n y = MatMul (q, w)",
    "nothing added": f"{_T} (n)\n q = Add (t, nothing)\n y = MatMul (q, w)",
    "its own shape": f"{_T} (n)\n q = Reshape (t, same)\n y = MatMul (q, w)",
    "expanded by nothing": f"{_T} (n)\n q = Expand (t, ones)\n y = MatMul (q, w)",
    "in two steps": "q = Transpose <perm = [0, 2, 1]> (n)\n t = Transpose <perm = [2, 0, 1]> (q)\n"
    " y = MatMul (t, w)",
    "fused product": f"{_T} (n)\n y = com.microsoft.FusedMatMul <alpha = 2.0> (t, w)",
    "twice": f"{_T} (n)\n a = MatMul (t, w)\n b = Transpose <perm = [1, 0, 2]> (a)\n"
    " y = MatMul (b, back)",
    "attention": f"{_T} (n)\n q = MatMul (t, m)\n keys = MatMul (t, m)\n"
    " turned = Transpose <perm = [0, 2, 1]> (keys)\n s = MatMul (q, turned)\n p = Softmax (s)\n"
    " o = MatMul (p, t)\n b = Transpose <perm = [1, 0, 2]> (o)\n y = MatMul (b, w)",
    "sum": f"{_T} (SUM)\n a = MatMul (t, w)\n b = MatMul (n, w)\n"
    " c = Transpose <perm = [1, 0, 2]> (b)\n y = Add (a, c)",
    "computed between": f"{_T} (n)\n q = Sigmoid (t)\n y = MatMul (q, w)",
    "four axes": "q = Unsqueeze (n, zero)\n t = Transpose <perm = [1, 2, 0, 3]> (q)\n"
    " a = MatMul (t, w)\n y = Squeeze (a, two)",
    "branch": f"{_T} (n)\n y = MatMul (t, w)",
}
"""From n to y; NORM is where the norm stands, if not before."""

FIXED, FREE = (3, 5, 8), ("B", "S", 8)
LABELS = tuple(
    f"{norm} | {place} | {sizes}"
    for norm, place, sizes in itertools.product(NORMS, PLACES, ("fixed", "free"))
    if place != "transposed before" or "residual" not in norm
)


def build(label: str) -> onnx.ModelProto:
    """Return a model of the float32 input ``input`` and output ``output``, float16 inside."""
    norm, place, sizes = label.split(" | ")
    total = "h" if "residual" in norm else "x"
    before = place == "transposed before"
    text, body = (
        PLACES[place].replace("SUM", total),
        NORMS[norm].replace("X", "t" if before else "x"),
    )
    nodes = text.replace("NORM", body) if before else f"{body}\n {text}"
    shape = ", ".join(map(str, FIXED if sizes == "fixed" else FREE))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
      g (float[{shape}] input) => (float[K, L, M] output) {{
        x = Cast <to = 10> (input)
        r = Cos (x)
        {nodes}
        output = Cast <to = 1> (y)
      }}""")
    if place == "branch":
        _put_into_a_branch(model.graph)
    rng = np.random.default_rng(zlib.crc32(label.encode()))
    for name, array in _constants(rng).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _put_into_a_branch(graph: onnx.GraphProto) -> None:
    inner, outer = list(graph.node)[1:-1], [graph.node[0], graph.node[-1]]
    y, other = (helper.make_tensor_value_info(name, 10, [None] * 3) for name in ("y", "other"))
    branches = {
        "then_branch": helper.make_graph(inner, "then", [], [y]),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["other"])], "else", [], [other]
        ),
    }
    del graph.node[:]
    choice = helper.make_node("If", ["yes"], ["y"], **branches)
    y_again = branches["then_branch"].output[0]
    for node in branches["then_branch"].node:
        for index, name in enumerate(node.output):
            if name == "y":
                node.output[index] = "inner"
    y_again.name = "inner"
    graph.node.extend([outer[0], choice, outer[1]])


def _constants(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def half(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float16)

    return {
        "axes": np.array([-1]),
        "zero": np.array([0]),
        "two": np.array([2]),
        "same": np.array([0, 0, 8]),
        "ones": np.array([1, 1, 1]),
        "yes": np.array(True),
        "eps": np.array(1e-3, np.float16),
        "eps32": np.array(1e-3, np.float32),
        "one": np.array(1, np.float16),
        "nothing": np.array(0, np.float16),
        "scale": half(8),
        "bias": half(6),
        "w": half(8, 6),
        "back": half(6, 8),
        "m": half(8, 8),
        "w3": half(1, 8, 6),
        "v": half(3, 6),
        "k": half(5, 6),
        "u": half(6, 3),
    }

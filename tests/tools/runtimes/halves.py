"""Models in float16: a norm, and what stands around it where it is transposed and multiplied."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from tests.tools.tables import table

TABLE = table(__file__)
NORMS, PLACES = TABLE["norms"], TABLE["places"]
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

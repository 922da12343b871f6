"""Models that are broken at one place, and chains of blocks to break."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rmsnorm_export import Verification


def chain(
    blocks: int = 12, *, wrong: int = -1, by: float = 1.5, extra: str = "", n: int = 16
) -> ir.Model:
    """``blocks`` times: a norm as exporters spell it, a product, a residual Add.

    Args:
        blocks: how many.
        wrong: the block whose product has another weight.
        by: factor of that.
        extra: nodes at the end, which read ``h{blocks}`` and make ``y``.
        n: elements in a row.
    """
    lines = []
    for i in range(blocks):
        lines += [
            f"q{i} = Mul (h{i}, h{i})",
            f"m{i} = ReduceMean <keepdims = 1> (q{i}, axes)",
            f"s{i} = Add (m{i}, eps)",
            f"r{i} = Sqrt (s{i})",
            f"v{i} = Div (h{i}, r{i})",
            f"n{i} = Mul (v{i}, gain)",
            f"p{i} = MatMul (n{i}, w{i})",
            f"h{i + 1} = Add (h{i}, p{i})",
        ]
    # A branch that agrees whatever happens, at the end of the graph.
    lines.append("shape = Shape (h0)")
    lines.append(extra or f"y = Identity (h{blocks})")
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> g '
        f"(float[rows, {n}] h0) => (float[rows, {n}] y) {{\n" + "\n".join(lines) + "\n}"
    )
    model = ir.from_onnx_text(text)
    rng = np.random.default_rng(7)
    values = {"axes": np.array([-1]), "eps": np.array(1e-6, np.float32)}
    values["gain"] = rng.uniform(0.5, 1.5, n).astype(np.float32)
    for i in range(blocks):
        weight = rng.standard_normal((n, n)).astype(np.float32) / n**0.5
        values[f"w{i}"] = weight * (by if i == wrong else 1)
    fill(model, values)
    for number, node in enumerate(model.graph):
        node.name = f"/{node.op_type}_{number}"
    return model


def fill(model: ir.Model, values: dict[str, np.ndarray]) -> None:
    """Give the free values of a graph from text their arrays."""
    for value in {v for node in model.graph.all_nodes() for v in node.inputs if v is not None}:
        if value.name in values and value.producer() is None:
            tensor = ir.tensor(values[value.name], name=value.name)
            value.const_value, value.dtype = tensor, tensor.dtype
            value.shape = ir.Shape(tensor.shape)
            model.graph.register_initializer(value)


def set_epsilon(model: ir.Model, name: str, epsilon: float) -> ir.Model:
    """Another epsilon in a norm that is one node."""
    node = next(node for node in model.graph if node.name == name)
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilon)
    return model


def told(result: Verification) -> tuple[str, str, bool]:
    """Name of the site that was found, its place, and whether its inputs agree."""
    assert not result.passed
    first = result.first_difference
    assert first is not None, result.notes
    assert first.site is not None
    return first.site.name, first.site.place, first.inputs_agree

"""Models that are broken at one place, and chains of blocks to break."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rmsnorm_export import Verification

BLOCK = """
  q{i} = Mul (h{i}, h{i})
  m{i} = ReduceMean <keepdims = 1> (q{i}, axes)
  s{i} = Add (m{i}, eps)
  r{i} = Sqrt (s{i})
  v{i} = Div (h{i}, r{i})
  n{i} = Mul (v{i}, gain)
  p{i} = MatMul (n{i}, w{i})
  h{next} = Add (h{i}, p{i})"""


def chain(blocks: int = 12, *, wrong: int = -1) -> ir.Model:
    """``blocks`` times a norm as exporters spell it, a product and a residual Add, of 16 elements.

    The block ``wrong`` has another weight. A branch at the end agrees whatever happens.
    """
    body = "".join(BLOCK.format(i=i, next=i + 1) for i in range(blocks))
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[rows, 16] h0) => (float[rows, 16] y)'
        f"{{ {body} shape = Shape (h0) y = Identity (h{blocks}) }}"
    )
    rng = np.random.default_rng(7)
    values = {"axes": np.array([-1]), "eps": np.array(1e-6, np.float32)}
    values["gain"] = rng.uniform(0.5, 1.5, 16).astype(np.float32)
    for i in range(blocks):
        weight = rng.standard_normal((16, 16)).astype(np.float32) / 4
        values[f"w{i}"] = weight * (1.5 if i == wrong else 1)
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


def begins_at(result: Verification) -> tuple[str, str, bool]:
    """Name of the site that was found, its place, and whether its inputs agree."""
    assert not result.passed
    first = result.first_difference
    assert first, result.notes
    return first.site.name, first.site.place, first.inputs_agree

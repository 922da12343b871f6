"""Other float types for a model's computation; its weights stay as they are stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs, insert, variables_in

Types = Mapping[int | None, ir.DataType]


def retype(model: ir.Model, types: Types) -> None:
    """Compute in other float types, in place; what reads a stored number reads a Cast of it.

    Initializers that a caller could replace become plain ones. A constant keeps its numbers, too:
    other types may not hold them, and with a third type they would not come back.

    Args:
        model: whose weights are not read.
        types: element type -> that which takes its place.
    """
    for graph in all_graphs(model):
        graph.inputs[:] = [value for value in graph.inputs if not value.is_initializer()]
        weights = [value for value in graph.initializers.values() if value.dtype in types]
        casts = [_cast(value, types[value.dtype]) for value in weights]
        kept = set[ir.Value]()
        for node in tuple(graph):
            stored = _constant_of(node)
            if stored is not None and stored.dtype in types:
                kept.add(node.outputs[0])
                insert(graph, node, _cast(node.outputs[0], types[stored.dtype]))
            else:
                retype_attributes(node, types)
        for value in variables_in([graph]):
            if value.dtype in types and value not in kept:
                value.type = ir.TensorType(types[value.dtype])
        insert(graph, None, *casts)


def _cast(value: ir.Value, to: ir.DataType) -> ir.Node:
    """Return a Cast, which all that read the value read now."""
    out = ir.Value(name=f"{value.name}.to.{to.name}", type=ir.TensorType(to))
    ir.convenience.replace_all_uses_with(value, out, replace_graph_outputs=True)
    return ir.Node("", "Cast", [value], [ir.AttrInt64("to", to)], outputs=[out])


def retype_attributes(node: ir.Node, types: Types) -> None:
    """Change the float types that the attributes of a node name or hold."""
    for name in {"to", "dtype", "output_dtype"} & node.attributes.keys():
        if not node.attributes[name].is_ref() and node.attributes[name].value in types:
            node.attributes[name] = ir.AttrInt64(name, types[node.attributes[name].value])
    tensor = _constant_of(node)
    if tensor is not None and tensor.dtype in types:
        node.attributes.clear()
        array = tensor.numpy().astype(types[tensor.dtype].numpy())
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))


def _constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return what a Constant or ConstantOfShape holds; None for any other node."""
    if node.op_type not in ("Constant", "ConstantOfShape"):
        return None
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    tensor = tensor or node.attributes.get_tensor("value", None)
    if tensor is None and node.op_type == "ConstantOfShape":
        return ir.tensor(np.zeros(1, np.float32))
    return tensor

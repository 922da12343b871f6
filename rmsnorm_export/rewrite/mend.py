"""RMSNormalization nodes in forms that runtimes do not take, mended where they stand.

PyTorch's exporter fuses a norm with the casts around it, so that X is float16 and the scale
float32: the operator's own function body then multiplies two types, and ONNX Runtime does not load
it. Such a node computes in the wider type, as PyTorch does, and keeps its output's type. A scale
that is no row of numbers (a modulation ``[batch, 1, n]``) broadcasts by the definition of the
operator, but not on GPUs: it goes to a Mul behind the node, where the definition has it. A single
number stays: ONNX Runtime takes it, and rounds in another order than a Mul.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import RMS_NORMALIZATION
from rmsnorm_export.recognize.consts import depends_on_caller
from rmsnorm_export.recognize.context import FLOATS, widens
from rmsnorm_export.rewrite.names import Names


def mend(model: ir.Model) -> None:
    """Change the nodes of ``model`` that need it, in place; element types must be in the file."""
    if model.opset_imports.get("", 0) < TARGETS["onnx"].min_opset:
        return
    names = Names(model)
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type == RMS_NORMALIZATION and node.domain == "":
                _mend(graph, node, names)


def _mend(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    x, scale = (*node.inputs, None, None)[:2]
    if x is None or scale is None or depends_on_caller(node) or len(node.outputs) != 1:
        return
    narrow, final = x.dtype, scale.dtype
    if narrow not in FLOATS or final not in FLOATS or narrow is None or final is None:
        return
    row = _row_apart(node, x, scale)
    if narrow == final and not row:
        return
    widest = (t for t in (narrow, final) if widens(narrow, t) and widens(final, t))
    wide = next(widest, ir.DataType.FLOAT)
    old, stem = node.outputs[0], node.name or node.outputs[0].name or "norm"
    nodes: list[ir.Node] = []

    def add(op: str, inputs: Sequence[ir.Value], like: ir.Value, **attributes: Any) -> ir.Value:
        """Append a node of type ``wide`` and the shape of ``like``."""
        name = names(f"{stem}/{op}")
        output = ir.Value(name=names(f"{name}_output"), shape=like.shape, type=ir.TensorType(wide))
        nodes.append(ir.node(op, inputs, attributes, outputs=[output], name=name))
        return output

    if narrow != wide:
        x = add("Cast", [x], x, to=int(wide))
    if final != wide:
        scale = add("Cast", [scale], scale, to=int(wide))
    factor = scale
    if row:
        size = ir.Value(name=names(f"{stem}/size"), type=ir.TensorType(ir.DataType.INT64))
        nodes.append(ir.node("Constant", [], {"value_ints": [row]}, outputs=[size]))
        scale = add("ConstantOfShape", [size], size, value=ir.tensor([1.0], dtype=wide))
        scale.shape = ir.Shape([row])
    result = add(RMS_NORMALIZATION, [x, scale], old, **node.attributes)
    nodes[-1].name = node.name
    nodes[-1].metadata_props.update(node.metadata_props)
    if row:
        result = add("Mul", [result, factor], old)
    if final != wide:
        result = add("Cast", [result], old, to=int(final))
    old.type = ir.TensorType(final)
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [old], [result])


def _row_apart(node: ir.Node, x: ir.Value, scale: ir.Value) -> int:
    """Return the elements of a row where the scale is certainly no row of numbers, else 0."""
    if node.attributes.get_int("axis", -1) != -1 or not x.shape or scale.shape is None:
        return 0
    n, dims = x.shape[-1], tuple(scale.shape)
    if not isinstance(n, int) or n < 1 or None in dims:
        return 0
    single = all(dim == 1 for dim in dims)
    row = dims[-1:] == (n,) and all(dim == 1 for dim in dims[:-1])
    return 0 if row or single else n

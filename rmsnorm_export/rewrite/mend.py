"""RMSNormalization nodes in forms that runtimes do not take, mended where they stand.

PyTorch's exporter fuses a norm with the casts around it, so that X is float16 and the scale
float32: the operator's own function body then multiplies two types, and ONNX Runtime does not load
it. Such a node computes in the wider type, as PyTorch does, and keeps its output's type. A scale
that is no row of numbers (a modulation ``[batch, 1, n]``) broadcasts by the definition of the
operator, but not on GPUs: it goes to a Mul behind the node, where the definition has it. A single
number stays: ONNX Runtime takes it, and rounds in another order than a Mul.
"""

from __future__ import annotations

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
    given, kept = x.dtype, scale.dtype
    if given not in FLOATS or kept not in FLOATS or given is None or kept is None:
        return
    wide = next((t for t in (given, kept) if widens(given, t) and widens(kept, t)), None)
    wide = wide or ir.DataType.FLOAT
    apart = _needs_product(node, x, scale)
    if given == kept and not apart:
        return
    old, stem = node.outputs[0], node.name or node.outputs[0].name or "norm"
    new: list[ir.Node] = []

    def add(
        op: str, inputs: list[ir.Value], attributes: dict[str, object], like: ir.Value
    ) -> ir.Value:
        """Append a node of type ``wide`` and the shape of ``like``."""
        name = names(f"{stem}/{op}")
        output = ir.Value(name=names(f"{name}_output"), shape=like.shape, type=ir.TensorType(wide))
        new.append(ir.node(op, inputs, attributes, outputs=[output], name=name))  # type: ignore[arg-type]
        return output

    if given != wide:
        x = add("Cast", [x], {"to": int(wide)}, x)
    if kept != wide:
        scale = add("Cast", [scale], {"to": int(wide)}, scale)
    factor = scale
    if apart:
        size = ir.Value(name=names(f"{stem}/size"), type=ir.TensorType(ir.DataType.INT64))
        new.append(ir.node("Constant", [], {"value_ints": [apart]}, outputs=[size]))
        one = ir.tensor([1.0], dtype=wide)
        scale = add("ConstantOfShape", [size], {"value": one}, size)
        scale.shape = ir.Shape([apart])
    result = add(RMS_NORMALIZATION, [x, scale], {}, old)
    norm = new[-1]
    norm.attributes.update(node.attributes)
    norm.name = node.name
    norm.metadata_props.update(node.metadata_props)
    if apart:
        result = add("Mul", [result, factor], {}, old)
    if kept != wide:
        result = add("Cast", [result], {"to": int(kept)}, old)
    graph.insert_before(node, new)
    name, result.type = old.name, ir.TensorType(kept)
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name = None
    result.name = name
    graph.remove(node, safe=True)


def _needs_product(node: ir.Node, x: ir.Value, scale: ir.Value) -> int:
    """Elements of a row where the scale is certainly no row of numbers, else 0."""
    if node.attributes.get_int("axis", -1) != -1 or x.shape is None or scale.shape is None:
        return 0
    n, dims = x.shape[-1] if len(x.shape) else None, tuple(scale.shape)
    if not isinstance(n, int) or n < 1 or not all(d is not None for d in dims):
        return 0
    number = all(d == 1 for d in dims)
    row = bool(dims) and dims[-1] == n and all(d == 1 for d in dims[:-1])
    return 0 if row or number else n

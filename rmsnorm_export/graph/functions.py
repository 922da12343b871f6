"""Functions put in the place of their calls, within bounds, and listed as readers need them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs, graphs_in
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.functions import callees_first, inlined_size
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.types import Types

_MOST_NODES = 20_000
"""Nodes that may come of a small model: putting them in place takes some seconds."""

_MOST_TIMES = 16
"""How many times larger a large model may become."""

_BODIES = "rmsnorm_export.bodies"
"""Domain of operators that are being written out."""


def inline(model: ir.Model, keys: Collection[ir.OperatorIdentifier] | None = None) -> ir.Model:
    """Return ``model``, changed, with bodies of functions (all, or these) for their calls.

    Raises:
        ValueError: the functions do not fit their calls, or there are too many calls of calls.
    """
    stored = sum(map(len, all_graphs(model)))
    if inlined_size(model) > max(_MOST_NODES, _MOST_TIMES * stored):
        raise ValueError("its functions call too many others to be put in the place of their calls")
    from onnx_ir.passes import PassError
    from onnx_ir.passes.common import InlinePass

    for key in model.functions if keys is None else keys:
        for node in model.functions[key].all_nodes():
            node.name = name_of(node)  # the pass would invent one, which the file does not know
    try:
        return InlinePass(criteria=lambda f: keys is None or f.identifier() in keys)(model).model
    except (PassError, RecursionError) as error:
        raise ValueError(str(error)) from error


def write_out(model: ir.Model, opset: int) -> ir.Model:
    """Return the model, or a copy with ONNX's own bodies of the operators that ``opset`` lacks.

    Operators without a body, or of inputs whose types are not known, stay.

    Raises:
        ValueError: as ``inline``.
    """
    own = model.opset_imports[""]
    lacking = {
        node.op_type for graph in all_graphs(model) for node in graph
        if not node.domain and onnx.defs.has(node.op_type, own)
        and not onnx.defs.has(node.op_type, opset)
    }  # fmt: skip
    copy = model.clone() if lacking else model
    types, bodies = Types(copy, Constants()), dict[bytes, ir.Function]()
    for node in (node for graph in graphs_in(copy.graph) for node in graph):
        if node.domain or node.op_type not in lacking:
            continue
        body = _body(node, own, types)
        if body is None:
            continue
        key = body.SerializeToString()
        if key not in bodies:
            body.domain, body.name = _BODIES, f"{node.op_type}_{len(bodies)}"
            bodies[key] = ir.serde.deserialize_function(body)
            bodies[key].opset_imports[""] = own
        node.domain, node.op_type = bodies[key].domain, bodies[key].name
    copy.functions.update({one.identifier(): one for one in bodies.values()})
    if not bodies:
        return model
    return write_out(inline(copy, {one.identifier() for one in bodies.values()}), opset)


def _body(node: ir.Node, opset: int, types: Types) -> onnx.FunctionProto | None:
    """Return the function that ONNX defines an operator by, as far as the node has its outputs."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset)  # whose stub lacks the functions
    depends = schema.has_context_dependent_function
    versions = (
        schema.context_dependent_function_opset_versions if depends
        else schema.function_opset_versions
    )  # fmt: skip
    version = max((version for version in versions if version <= opset), default=0)
    kinds = [(None, None) if value is None else types.info(value) for value in node.inputs]
    known = all(
        dtype or value is None for (dtype, _), value in zip(kinds, node.inputs, strict=True)
    )
    if not version or not known:
        return None
    if depends:
        protos = [
            onnx.helper.make_tensor_type_proto(int(dtype or 0), dims) for dtype, dims in kinds
        ]
        messages = [proto.SerializeToString() for proto in (ir.to_proto(node), *protos)]
        content = schema.get_context_dependent_function_with_opset_version(
            version, messages[0], messages[1:]
        )
    else:
        content = schema.get_function_with_opset_version(version)
    body = onnx.FunctionProto.FromString(content)
    del body.output[len(node.outputs) :]
    computed = {name for inner in body.node for name in inner.output}
    return body if computed.issuperset(body.output) else None


def own_functions(model: ir.Model) -> Iterator[ir.Function]:
    """Return the functions in this package's domain."""
    return (function for function in model.functions.values() if function.domain == DOMAIN)


def count_nodes(model: ir.Model) -> int:
    """Count the nodes, without the bodies of this package's own operators."""
    own = (g for f in own_functions(model) for g in (f.graph, *f.subgraphs()))
    return sum(map(len, all_graphs(model))) - sum(map(len, own))


def sort_functions(model: ir.Model) -> None:
    """List every function after those that it calls, as some readers need them."""
    ordered = {key: model.functions[key] for key in callees_first(model)}
    model.functions.clear()
    model.functions.update(ordered)

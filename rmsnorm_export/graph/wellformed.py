"""Linear-time checks of a model: what would otherwise be a traceback, or wrong numbers, later.

``onnx.checker`` is not used: it wants the whole model, weights included, as one string, and refuses
harmless oddities (nodes out of order) that can be put right.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
from collections.abc import Iterable
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.order import label, subgraphs
from rmsnorm_export.graph.tensors import unknown_type
from rmsnorm_export.op.native import SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.printable import quoted, short

MAX_NESTING = 31
"""Deepest nest of subgraphs. Protobuf parsers stop at 100 nested messages; a graph in a graph costs
three, and the value_info of the innermost one five."""

OLDEST_OPSET, NEWEST_OPSET = 13, 24
"""Versions of the default domain for which the operator's function bodies are written."""

_DEFAULT = ("", "ai.onnx")
"""Names of the default domain; onnx_ir calls that of every node by the first."""

_REPAIR = "repair the program that wrote the model, or export it again"


def _bad(what: str, found: str, fix: str = _REPAIR) -> InputError:
    return InputError(what, found=found, fix=fix)


def check_versions(ir_version: int, opsets: dict[str, int]) -> list[str]:
    """Refuse IR versions and opsets that cannot be read faithfully; return notes on unusual ones.

    Raises:
        InputError: no opset import, an impossible version, or an IR version newer than the
            installed onnx (its new fields would be dropped without a word).
    """
    if not 1 <= ir_version <= onnx.IR_VERSION:
        found = f"ir_version {ir_version}, onnx {onnx.__version__} reads 1 to {onnx.IR_VERSION}"
        fix = "install a newer onnx package, or export the model again with an older IR version"
        raise _bad("The model's IR version is not one that can be read here.", found, fix)
    if not opsets:
        raise _bad("The model does not say which operator versions it uses.", "no opset_import")
    for domain, version in opsets.items():
        if not 1 <= version < 2**31:
            found = f"version {version} of domain {quoted(domain)}"
            raise _bad("The model imports an operator set version that does not exist.", found)
    version = opsets.get("", opsets.get("ai.onnx", 0))
    if version and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        return [f"opset {version} lies outside the supported range {OLDEST_OPSET}-{NEWEST_OPSET}"]
    return []


def check_graphs(model: ir.Model) -> bool:
    """Check the values and scopes of the main graph, its subgraphs and the functions.

    Returns:
        Whether every node comes after the nodes whose outputs it uses.

    Raises:
        InputError: naming the node or value: nesting too deep, an input or output that nothing
            produces, duplicate names, functions that call themselves.
    """
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    ordered = [_check_scope(graph, set(), frozenset()) for graph in graphs]
    _check_functions(model)
    return all(ordered)


def _check_scope(graph: ir.Graph, seen: set[ir.Node], outer: frozenset[ir.Graph]) -> bool:
    if len(outer) > MAX_NESTING:
        raise _too_deep()
    ordered = True
    outer |= {graph}
    inputs = [value.name for value in graph.inputs]
    computed = [value.name for node in graph for value in node.outputs if value.name]
    check_unique([*inputs, *(graph.initializers.keys() - inputs), *computed])
    for node in graph:
        _check_texts(node.name, node.op_type)
        if node.attributes.data:
            _check_attributes(node)
        for value in (value for value in node.inputs if value is not None):
            producer = value.producer()
            if producer is None:
                _check_defined(value, node)
            elif producer not in seen:
                if producer.graph not in outer:
                    what = "A node uses a value of a graph that does not enclose it."
                    raise _bad(what, f"node {label(node)} reads {quoted(str(value.name))}")
                ordered = False
        if node.attributes.data:
            for subgraph in subgraphs(node):
                ordered &= _check_scope(subgraph, seen, outer)
        seen.add(node)
    for output in graph.outputs:
        _check_defined(output, None)
    return ordered


def _check_attributes(node: ir.Node) -> None:
    """Refuse a value of a type that the operator does not have: it is lost, or no runtime reads."""
    is_known = not node.domain or node.op_type == SKIP_SIMPLIFIED
    types = _types_of(node.op_type) if is_known else {}
    for attribute in node.attributes.data.values():
        type_ = types.get(attribute.name, attribute.type)
        if (attribute.type != type_ or not type_) and not attribute.is_ref():
            found = f"attribute {quoted(attribute.name)} of node {label(node)}"
            raise _bad("An attribute has no type, or another one than its operator reads.", found)


@functools.lru_cache(1024)
def _types_of(op_type: str) -> dict[str, int]:
    """Return the types of an operator's attributes, of the oldest and the newest version."""
    own = (SIMPLIFIED, SKIP_SIMPLIFIED)  # of ONNX Runtime, which names them as ONNX does
    name, types = "LayerNormalization" if op_type in own else op_type, dict[str, int]()
    for version in (OLDEST_OPSET, NEWEST_OPSET):
        with contextlib.suppress(onnx.defs.SchemaError):
            schema: Any = onnx.defs.get_schema(name, version, "")
            types |= {one.name: int(one.type) for one in schema.attributes.values()}
    return types


def _check_defined(value: ir.Value, reader: ir.Node | None) -> None:
    """Refuse a value that nothing produces; the reader is None for an output of the graph."""
    is_initializer = value.is_initializer() and value.const_value is not None
    if value.producer() is None and not value.is_graph_input() and not is_initializer:
        who = "the graph returns" if reader is None else f"node {label(reader)} reads"
        found = f"{who} {quoted(str(value.name))}, which is undefined: nothing has that name"
        raise _bad("The graph uses a value that nothing produces.", found)


def _check_texts(*texts: str | bytes | None) -> None:
    """Refuse names that are not UTF-8, which can be read but not written."""
    for text in texts:
        if isinstance(text, bytes):  # what protobuf hands over for a text that is not UTF-8
            raise _bad("A name in the model is not UTF-8.", quoted(text))


def check_unique(names: Iterable[str | bytes | None]) -> None:
    """Refuse a name that stands twice, or is not UTF-8."""
    seen: set[str | bytes | None] = set()
    for name in names:
        _check_texts(name)
        if name in seen:
            what = "Two values of one graph, or two functions, have the same name."
            raise _bad(what, f"duplicate name {quoted(str(name))}")
        seen.add(name)


def _too_deep() -> InputError:
    found = f"more than {MAX_NESTING} levels, the most that a protobuf parser reads"
    return _bad("Subgraphs are nested too deeply.", found, "flatten the control flow of the model")


def check_depth(proto: onnx.ModelProto) -> None:
    """Refuse a ModelProto built in memory that nests deeper than ``MAX_NESTING``."""
    level = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    for _ in range(MAX_NESTING + 1):
        attributes = [attribute for node in level for attribute in node.attribute]
        graphs = [one.g for one in attributes if one.HasField("g")]
        graphs += [graph for one in attributes for graph in one.graphs]
        level = [node for graph in graphs for node in graph.node]
    if level:
        raise _too_deep()


def _check_functions(model: ir.Model) -> None:
    """Refuse functions that no two runtimes take for the same."""
    for domain, name, _ in model.functions:
        if domain in _DEFAULT and (name == SIMPLIFIED or onnx.defs.has(name, "")):
            # ONNX Runtime runs the operator, ONNX's own evaluator the function.
            what = "A function of the model has the name of an operator of ONNX."
            raise _bad(what, f"function {quoted(name)}", "give the function a domain of its own")
    calls = {
        key: [node.op_identifier() for node in function.all_nodes()]
        for key, function in model.functions.items()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        names = " <- ".join(f"{domain}::{name}" for domain, name, _ in error.args[1])
        what = "Functions of the model call each other in a circle."
        raise _bad(what, short(names, 300)) from error


def check_proto(proto: onnx.ModelProto) -> list[str]:
    """Refuse what onnx_ir would drop or merge without a word; return notes on what may be dropped.

    Raises:
        InputError: sparse initializers, two initializers or functions of one
            name, two versions of one operator set, an initializer of no known type, an output of a
            function that nothing produces.
    """
    if proto.graph.sparse_initializer:
        what = "The model stores sparse initializers, which cannot be carried over."
        found = f"the first is {quoted(proto.graph.sparse_initializer[0].values.name)}"
        raise _bad(what, found, "export the model with dense initializers")
    check_unique(tensor.name for tensor in proto.graph.initializer if tensor.name)
    check_unique(f"{f.domain}::{f.name}:{f.overload}" for f in proto.functions)
    for tensor in proto.graph.initializer:
        if tensor.data_type not in onnx.TensorProto.DataType.values() or not tensor.data_type:
            raise unknown_type(tensor.name, tensor.data_type)
    for function in proto.functions:
        produced = {*function.input, *(name for node in function.node for name in node.output)}
        for name in set(function.output) - produced:
            found = f"output {quoted(name)} of function {quoted(function.name)}"
            raise _bad("The output of a function is undefined.", found)
    # One that stands twice, as of onnx.compose, is no harm.
    opsets = {(one.domain or "ai.onnx", one.version) for one in proto.opset_import}
    if len({domain for domain, _ in opsets}) < len(opsets):
        raise _bad("The model imports two versions of one operator set.", short(str(opsets)))
    entries = {entry.key for tensor in proto.graph.initializer for entry in tensor.external_data}
    extra = sorted(map(str, entries - {"location", "offset", "length"}))
    notes = [f"entries {quoted(key)} of external data are dropped" for key in extra]
    if proto.training_info:
        notes.append("the training_info of the model is dropped")
    return notes

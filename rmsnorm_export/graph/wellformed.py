"""Linear-time checks of a model: what would otherwise be a traceback, or wrong numbers, later.

``onnx.checker`` is not used: it wants the whole model, weights included, as one string, and refuses
harmless oddities (nodes out of order) that can be put right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.order import all_nodes, find_cycle, label, subgraphs
from rmsnorm_export.graph.tensors import unknown_type
from rmsnorm_export.op.native import DEFAULT_DOMAINS, SIMPLIFIED
from rmsnorm_export.printable import quoted, short

MAX_NESTING = 31
"""Deepest nest of subgraphs. Protobuf parsers stop at 100 nested messages; a graph in a graph costs
three, and the value_info of the innermost one five."""

OLDEST_OPSET, NEWEST_OPSET = 13, 24
"""Versions of the default domain for which the operator's function bodies are written."""


def check_versions(ir_version: int, opsets: dict[str, int]) -> list[str]:
    """Refuse IR versions and opsets that cannot be read faithfully; notes for unusual ones.

    Raises:
        InputError: no opset import, an impossible version, or an IR version newer than the
            installed onnx (its new fields would be dropped without a word).
    """
    if not 1 <= ir_version <= onnx.IR_VERSION:
        raise InputError(
            "The model's IR version is not one that this installation can read.",
            found=f"ir_version {ir_version}, while onnx {onnx.__version__} knows 1 to "
            f"{onnx.IR_VERSION}",
            fix="install a newer onnx package, or export the model again with an older IR version",
        )
    if not opsets:
        raise InputError(
            "The model does not say which operator versions it uses.",
            found="no opset_import",
            fix="export the model again; the file may be cut off",
        )
    for domain, version in opsets.items():
        if not 1 <= version < 2**31:
            raise InputError(
                "The model imports an operator set version that does not exist.",
                found=f"version {version} of domain {quoted(domain)}",
                fix="export the model again",
            )
    version = opsets.get("", opsets.get("ai.onnx", 0))
    if version and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        return [f"opset {version} lies outside the supported range {OLDEST_OPSET}-{NEWEST_OPSET}"]
    return []


def check_graphs(model: ir.Model, *, names: bool) -> bool:
    """Check the values and scopes of the main graph, its subgraphs and the functions.

    Args:
        names: also check that value names are unique in each scope. onnx_ir does so when it reads
            a file, but not for a graph built in memory.

    Returns:
        Whether every node comes after the nodes whose outputs it uses.

    Raises:
        InputError: naming the node or value: nesting too deep, an input or output that nothing
            produces, duplicate names, functions that call themselves.
    """
    ordered = _check_scope(model.graph, set(), set(), 0, names)
    for function in model.functions.values():
        ordered &= _check_scope(function.graph, set(), set(), 0, names)
    _check_function_names(model)
    _check_recursion(model)
    return ordered


def _check_scope(
    graph: ir.Graph, seen: set[ir.Node], outer: set[ir.Graph], depth: int, names: bool
) -> bool:
    if depth > MAX_NESTING:
        raise too_deep()
    ordered = True
    outer = outer | {graph}
    _check_unique((value.name for value in graph.inputs), "input")
    if names:
        _check_unique(_value_names(graph), "value")
    for initializer in graph.initializers.values():
        if initializer.const_value is None:
            raise InputError(
                "An initializer has no data.",
                found=f"initializer {quoted(str(initializer.name))}",
                fix="give it a tensor, or make it a graph input",
            )
    for node in graph:
        _check_writable(node)
        for value in node.inputs:
            if value is None:
                continue
            producer = value.producer()
            if producer is None:
                if not (value.is_graph_input() or value.is_initializer()):
                    raise _undefined(value, f"node {label(node)} reads")
            elif producer not in seen:
                if producer.graph not in outer:
                    raise InputError(
                        "A node uses a value of a graph that does not enclose it.",
                        found=f"node {label(node)} reads {quoted(str(value.name))}, made by "
                        f"{label(producer)}",
                        fix="repair the program that wrote the model",
                    )
                ordered = False
        for subgraph in subgraphs(node) if node.attributes else ():
            ordered &= _check_scope(subgraph, seen, outer, depth + 1, names)
        seen.add(node)
    for output in graph.outputs:
        if output.producer() is None and not (output.is_graph_input() or output.is_initializer()):
            raise _undefined(output, "the graph returns")
    return ordered


def _check_writable(node: ir.Node) -> None:
    """Refuse what can be read but not written: names that are not UTF-8, untyped attributes.

    protobuf hands over a string that is not UTF-8 as bytes.
    """
    names: list[object] = [node.name, node.op_type]
    for value in node.outputs:
        names.append(value.name)
    for name in names:
        if isinstance(name, bytes):
            raise _not_utf8(name)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.UNDEFINED and not attribute.is_ref():
            raise InputError(
                "An attribute has no type, so its value is lost.",
                found=f"attribute {quoted(attribute.name)} of node {label(node)}",
                fix="export the model again; types are written since ONNX IR version 2",
            )


def _not_utf8(name: bytes) -> InputError:
    return InputError(
        "A name in the model is not UTF-8.",
        found=quoted(name),
        fix="repair the program that wrote the model",
    )


def _value_names(graph: ir.Graph) -> Iterator[str | None]:
    inputs = {value.name for value in graph.inputs}
    yield from inputs
    yield from (name for name in graph.initializers if name not in inputs)
    for node in graph:
        for value in node.outputs:
            if value.name:
                yield value.name


def _check_unique(names: Iterable[str | bytes | None], kind: str) -> None:
    known: set[str | None] = set()
    for name in names:
        if isinstance(name, bytes):
            raise _not_utf8(name)
        if name in known:
            raise InputError(
                f"Two values of one graph have the same name (a second {kind}).",
                found=f"duplicate name {quoted(str(name))}",
                fix="give every value its own name; repair the program that wrote the model",
            )
        known.add(name)


def _undefined(value: ir.Value, where: str) -> InputError:
    return InputError(
        "The graph uses a value that nothing produces.",
        found=f"{where} {quoted(str(value.name))}, which is undefined: no input, initializer "
        "or node output has that name",
        fix="export the model again, or add the missing input",
    )


def too_deep() -> InputError:
    """The error for subgraphs nested deeper than any protobuf parser reads."""
    return InputError(
        "Subgraphs are nested too deeply.",
        found=f"more than {MAX_NESTING} levels, the most that a protobuf parser reads",
        fix="flatten the control flow of the model",
    )


def proto_too_deep(proto: onnx.ModelProto) -> bool:
    """Whether a ModelProto built in memory nests deeper than ``MAX_NESTING``; no recursion."""
    level: list[Iterable[onnx.NodeProto]] = [proto.graph.node]
    level += [function.node for function in proto.functions]
    for _ in range(MAX_NESTING + 1):
        level = [
            graph.node for nodes in level for node in nodes for graph in _proto_subgraphs(node)
        ]
        if not level:
            return False
    return True


def _proto_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def _proto_scope(graph: onnx.GraphProto) -> tuple[Iterable[str], Iterable[onnx.NodeProto]]:
    """Names that a graph has before its nodes run, and these."""
    inputs = [value.name for value in graph.input]
    return inputs + [tensor.name for tensor in graph.initializer], graph.node


def _check_function_names(model: ir.Model) -> None:
    """Refuse functions named as ONNX's operators: ONNX Runtime runs the operator, ONNX's own
    evaluator the function, and whoever inlines them changes what the model computes."""
    for domain, name, _ in model.functions:
        if domain in DEFAULT_DOMAINS and (name == SIMPLIFIED or onnx.defs.has(name, "")):
            raise InputError(
                "A function of the model has the name of an operator of ONNX.",
                found=f"function {quoted(name)} of the default domain, of which runtimes run one "
                "or the other",
                fix="give the function a domain of its own",
            )


def _check_recursion(model: ir.Model) -> None:
    """Refuse functions that call each other in a circle: no runtime can inline them."""
    functions = model.functions
    if not functions:
        return
    calls = {
        key: list(dict.fromkeys(node.op_identifier() for node in all_nodes(function.graph)))
        for key, function in functions.items()
    }
    if circle := find_cycle(calls):
        raise InputError(
            "Functions of the model call each other in a circle.",
            found=short(" -> ".join(f"{domain}::{name}" for domain, name, _ in circle), 300),
            fix="repair the program that wrote the model",
        )


def check_proto(proto: onnx.ModelProto) -> list[str]:
    """Refuse what onnx_ir would drop or merge without a word; notes for what is safely dropped.

    Raises:
        InputError: sparse initializers, two initializers or functions of one name, two versions of
            one operator set, an initializer of no known type, an offset or length no number.
    """
    if proto.graph.sparse_initializer:
        raise InputError(
            "The model stores sparse initializers, which cannot be carried over.",
            found=f"{len(proto.graph.sparse_initializer)} sparse initializers, the first is "
            f"{quoted(proto.graph.sparse_initializer[0].values.name)}",
            fix="export the model with dense initializers",
        )
    extra = {key for tensor in proto.graph.initializer for key in _check_entries(tensor)}
    _check_unique((tensor.name for tensor in proto.graph.initializer if tensor.name), "initializer")
    _check_unique(
        (f"{entry.domain}::{entry.name}:{entry.overload}" for entry in proto.functions), "function"
    )
    _check_opsets(proto)
    notes = []
    if proto.training_info:
        notes.append("the training_info of the model is not carried over")
    if extra:
        keys = ", ".join(sorted(quoted(key) for key in extra))
        notes.append(f"entries {short(keys, 200)} of external data are not carried over")
    return notes


def _check_opsets(proto: onnx.ModelProto) -> None:
    """One version of each domain; the same one twice, as ``onnx.compose`` writes it, is no harm."""
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise InputError(
                "The model imports two versions of one operator set.",
                found=f"{quoted(domain or 'ai.onnx')}: {versions[domain]} and {entry.version}",
                fix="convert the parts to one opset before they are merged",
            )


def _check_entries(tensor: onnx.TensorProto) -> list[str]:
    """Check one initializer; the keys of its external data that onnx_ir does not keep."""
    if tensor.data_type == 0 or tensor.data_type not in onnx.TensorProto.DataType.values():
        raise unknown_type(tensor.name, tensor.data_type)
    for entry in tensor.external_data:
        digits = entry.value.isascii() and entry.value.isdigit()
        if entry.key in ("offset", "length") and not digits:
            raise InputError(
                f"The {entry.key} of external data is negative or not a number.",
                found=f"tensor {quoted(tensor.name)}: {entry.key} {quoted(entry.value)}",
                fix="export the model again",
            )
    kept = ("location", "offset", "length")
    return [entry.key for entry in tensor.external_data if entry.key not in kept]


def clash(proto: onnx.ModelProto) -> str:
    """Which name makes onnx_ir refuse a graph: a duplicate, or a function output never made.

    Only called after a failure; "" when the reason is another.
    """
    scopes = [_proto_scope(proto.graph)]
    scopes += [(function.input, function.node) for function in proto.functions]
    for given, nodes in scopes:
        makers = dict.fromkeys(given, "an input or initializer")
        for node in nodes:
            for name in node.output:
                if name in makers:
                    return (
                        f"duplicate name {quoted(name)}: made by {makers[name]} and again by "
                        f"node {quoted(node.name)} ({short(node.op_type)})"
                    )
                if name:
                    makers[name] = f"node {quoted(node.name)}"
            scopes += map(_proto_scope, _proto_subgraphs(node))
    for function in proto.functions:
        made = {*function.input, *(name for node in function.node for name in node.output)}
        for name in function.output:
            if name not in made:
                return (
                    f"output {quoted(name)} of function {quoted(function.name)} is "
                    "undefined: nothing in it produces it"
                )
    return ""

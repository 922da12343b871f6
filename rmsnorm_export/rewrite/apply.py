"""Put new nodes in the place of old ones, and remove dead nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from rmsnorm_export.graph.functions import sort_functions
from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import all_graphs, are_needed, nodes_of
from rmsnorm_export.lower.builder import NUMERICS_CLASS, REPLACES, SPELLING
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN, OPSET_VERSION
from rmsnorm_export.recognize.functions import is_own, reached
from rmsnorm_export.recognize.refusal import ANEW, FORMERLY
from rmsnorm_export.rewrite.plan import Plan

FUNCTION_IR_VERSION = 8
"""First IR version with model-local functions."""


def apply_plan(plan: Plan) -> None:
    """Change the model of a plan as it says.

    Values keep their names, graph outputs and captured values included.
    """
    model, names = plan.model, plan.names
    called = reached(model, frozenset())
    graphs = list(all_graphs(model))
    position = {node: float(place) for graph in graphs for place, node in enumerate(graph)}
    for node in position:
        for key in (FORMERLY, ANEW):
            node.metadata_props.pop(key, None)
    bodies = {
        graph: function
        for function in model.functions.values()
        for graph in (function.graph, *function.subgraphs())
    }
    unsorted: dict[ir.Graph, None] = {}
    replaced: dict[ir.Node, None] = {}
    for site in plan.sites:
        anchor, in_order = _place(site, position)
        graph = anchor.graph
        assert graph is not None
        if not in_order:
            unsorted[graph] = None
        function = bodies.get(graph)
        for value in site.initializers:
            _add_constant(model, None if function is None else function.graph, value)
        graph.insert_before(anchor, site.nodes)
        for node in site.nodes:
            # Nodes before the anchor, new ones included, are after every smaller integer.
            position[node] = position[anchor] - 0.5
            for holder in (model, function):
                if holder is not None and node.domain:
                    holder.opset_imports.setdefault(node.domain, node.version or OPSET_VERSION)
        _copy_metadata(site)
        for old, new in site.replace:
            if (producer := old.producer()) is not None:
                replaced[producer] = None
            take_over(old, new, names)
    _remove_dead(replaced)
    _drop_unread(model)
    for graph in unsorted:
        graph.sort()
    for function in (function for site in plan.sites for function in site.functions):
        model.opset_imports[DOMAIN] = OPSET_VERSION
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
        model.functions[function.identifier()] = function
    _drop_uncalled(model, called)
    sort_functions(model)


def _place(site: Lowered, position: Mapping[ir.Node, float]) -> tuple[ir.Node, bool]:
    """Return the node before which the site goes, and whether all its inputs are before it.

    With one output that is the node it replaces. A residual sum has consumers before the norm, so
    the site goes where the Add is, unless an input of it is computed later.
    """
    producers = [p for old, _ in site.replace if (p := old.producer()) is not None]
    first = min(producers, key=lambda node: position[node])
    inputs = (value for node in site.nodes for value in node.inputs if value is not None)
    needed = [p for value in inputs if (p := value.producer()) is not None and p in position]
    if all(p.graph is not first.graph or position[p] < position[first] for p in needed):
        return first, True
    return producers[0], len(producers) == 1


def take_over(old: ir.Value, new: ir.Value, names: Names) -> None:
    """Give the uses, the name and the description of a value to the one in its place."""
    name = old.name
    new.doc_string = new.doc_string or old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    # A graph declares no more of its outputs than before.
    if old.shape is not None or old.is_graph_output():
        new.shape = old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if name:
        old.name = names(f"{name}_replaced")
        new.name = name


def _copy_metadata(site: Lowered) -> None:
    """Copy the exporter's records of the source nodes (module path, stack trace).

    Of two nodes that say different things the later one is right: a residual Add, which comes
    first, is of another module.
    """
    for source in reversed(site.part.nodes):
        for key, value in source.metadata_props.items():
            for node in site.nodes:
                if key not in (REPLACES, NUMERICS_CLASS, SPELLING):
                    node.metadata_props.setdefault(key, value)


def _add_constant(model: ir.Model, body: ir.Graph | None, value: ir.Value) -> None:
    """Store a new constant in the main graph, or in the body of the function that needs it."""
    if body is None:
        if value.name not in model.graph.initializers:
            model.graph.register_initializer(value)
    elif value.const_value is not None and value.uses():  # else an earlier site has made it
        output = ir.Value(name=value.name, shape=value.shape, type=value.type)
        attributes = {"value": value.const_value}
        node = ir.node("Constant", [], attributes, outputs=[output], name=value.name)
        value.replace_all_uses_with(output)
        body.insert_before(body[0], node)


def _drop_unread(model: ir.Model) -> None:
    """Take from ONNX Runtime's residual operator the outputs that nobody reads.

    Releases 1.16 to 1.18 plan memory for them in which another value still is: wrong numbers. Of
    this package's operators, which are functions, the runtime wants all outputs.
    """
    for node in nodes_of(model):
        if node.op_type == SKIP_SIMPLIFIED and node.domain == MICROSOFT_DOMAIN:
            unread = [value for value in node.outputs[1:] if not are_needed([value])]
            for value in unread:
                value.name = ""
            read = (i for i, v in enumerate(node.outputs, 1) if v not in unread)
            node.resize_outputs(max(read))


def _remove_dead(candidates: Iterable[ir.Node]) -> None:
    """Remove these nodes, and those that they alone used, unless they are needed.

    In waves, so that a constant which thousands of norms share is looked at a few times, not once
    for each of them.
    """
    wave = dict.fromkeys(candidates)
    while wave:
        dead = [node for node in wave if node.graph is not None and not are_needed(node.outputs)]
        inputs = dict.fromkeys(v for node in dead for v in node.inputs if v is not None)
        for node in dead:
            if node.graph is not None:
                node.graph.remove(node, safe=True)
        wave = dict.fromkeys(p for v in inputs if (p := v.producer()) is not None)
        for value in inputs:
            graph = value.graph if value.is_initializer() and not value.is_graph_input() else None
            if graph is not None and not are_needed([value]):
                graph.initializers.pop(value.name or "", None)


def _drop_uncalled(model: ir.Model, before: Collection[ir.OperatorIdentifier]) -> None:
    """Drop functions that nothing calls any more, and the import of this package's domain then.

    Args:
        model: changed.
        before: what was called; of this package's own functions every one goes that is not called.
    """
    called = reached(model, frozenset())
    for key in [key for key in model.functions if key not in called]:
        if key in before or is_own(model.functions[key]):
            del model.functions[key]
    own = (node for node in nodes_of(model) if node.domain == DOMAIN)
    if not any(key[0] == DOMAIN for key in model.functions) and next(own, None) is None:
        model.opset_imports.pop(DOMAIN, None)

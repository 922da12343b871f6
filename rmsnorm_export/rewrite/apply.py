"""Put new nodes in the place of old ones, and remove what is then dead."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.graph.functions import sort_functions
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.builder import FORMERLY, NUMERICS_CLASS, REPLACES, SPELLING
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN, OPSET_VERSION
from rmsnorm_export.recognize.scan import foreign_functions
from rmsnorm_export.rewrite.names import Names
from rmsnorm_export.rewrite.plan import Plan

FUNCTION_IR_VERSION = 8
"""First IR version with model-local functions."""


def apply_plan(plan: Plan) -> None:
    """Change the model of a plan as it says."""
    _insert(plan.model, plan.sites, plan.names)
    _drop_unused_own(plan.model)
    sort_functions(plan.model)


def _insert(model: ir.Model, sites: Sequence[Lowered], names: Names) -> None:
    """Insert the nodes of every site, redirect the uses of what they replace, remove the dead.

    Values keep their names: what was called ``y`` before is called ``y`` after, graph outputs and
    captured values included.
    """
    order = _Order()
    functions: dict[str, ir.Function] = {}
    dead: list[ir.Node] = []
    bodies = {
        graph: function
        for function in model.functions.values()
        for graph in (function.graph, *function.subgraphs())
    }
    for site in sites:
        anchor = order.place(site)
        graph = anchor.graph
        assert graph is not None
        inside = bodies.get(graph)
        for value in site.initializers:
            _add_constant(model, None if inside is None else inside.graph, value)
        graph.insert_before(anchor, site.nodes)
        order.inserted(site.nodes, anchor)
        for node in site.nodes:
            for holder in (model, inside):
                if holder is not None and node.domain:
                    holder.opset_imports.setdefault(node.domain, node.version or OPSET_VERSION)
        _copy_metadata(site)
        for old, new in site.replace:
            if (producer := old.producer()) is not None:
                dead.append(producer)
            _take_over(old, new, names)
        functions.update((f.name, f) for f in site.functions)
    _remove_dead(dead)
    _drop_unread(model)
    for graph in order.unsorted:
        graph.sort()
    if functions:
        model.opset_imports[DOMAIN] = OPSET_VERSION
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
        for function in functions.values():
            model.functions[function.identifier()] = function


def _take_over(old: ir.Value, new: ir.Value, names: Names) -> None:
    """Give the uses, the name and the description of a value to the one in its place."""
    name = old.name
    new.doc_string = new.doc_string or old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    # A graph says of its outputs what it said before, and no more.
    if old.shape is not None or old.is_graph_output():
        new.shape = old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if name:
        old.name = names(f"{name}_replaced")
        new.name = name


def _copy_metadata(site: Lowered) -> None:
    """Copy what an exporter said of the source nodes (module path, stack trace).

    Of two nodes that say different things the later one is right: a residual Add, which comes
    first, is of another module.
    """
    for source in reversed(site.part.nodes):
        for key, value in source.metadata_props.items():
            for node in site.nodes:
                if key not in (REPLACES, NUMERICS_CLASS, SPELLING, FORMERLY):
                    node.metadata_props.setdefault(key, value)


def _add_constant(model: ir.Model, function_graph: ir.Graph | None, value: ir.Value) -> None:
    if function_graph is None:
        if value.name not in model.graph.initializers:
            model.graph.register_initializer(value)
        return
    if value.const_value is None or not value.uses():
        # Without uses: the Constant of an earlier site in this function serves already.
        return
    output = ir.Value(name=value.name, shape=value.shape, type=value.type)
    attributes = {"value": value.const_value}
    node = ir.node("Constant", [], attributes, outputs=[output], name=value.name)
    value.replace_all_uses_with(output)
    first = next(iter(function_graph), None)
    if first is None:
        function_graph.append(node)
    else:
        function_graph.insert_before(first, node)


class _Order:
    """Positions of nodes in their graphs, so that a new one is put behind all its inputs."""

    def __init__(self) -> None:
        self._position: dict[ir.Graph, dict[ir.Node, float]] = {}
        self.unsorted: list[ir.Graph] = []

    def place(self, site: Lowered) -> ir.Node:
        """Return the node in front of which the site goes.

        With one output that is the node it replaces. A residual sum has consumers before the norm,
        so the site goes where the Add is, unless an input of it is computed later.
        """
        producers = [p for old, _ in site.replace if (p := old.producer()) is not None]
        last = producers[0]
        if len(producers) == 1:
            return last
        graph = last.graph
        assert graph is not None
        position = self._known(graph)
        first = min(producers, key=lambda node: position[node])
        inputs = (v.producer() for node in site.nodes for v in node.inputs if v is not None)
        own = set(site.nodes)
        if all(
            p is None or p in own or p.graph is not graph or position.get(p, -1.0) < position[first]
            for p in inputs
        ):
            return first
        if graph not in self.unsorted:
            self.unsorted.append(graph)
        return last

    def inserted(self, nodes: Sequence[ir.Node], anchor: ir.Node) -> None:
        position = self._position.get(anchor.graph)  # type: ignore[arg-type]
        if position is not None:
            # Just in front of the anchor: what stands there is behind every integer below.
            for node in nodes:
                position[node] = position[anchor] - 0.5

    def _known(self, graph: ir.Graph) -> dict[ir.Node, float]:
        if graph not in self._position:
            self._position[graph] = {node: float(i) for i, node in enumerate(graph)}
        return self._position[graph]


def _drop_unread(model: ir.Model) -> None:
    """Take from ONNX Runtime's residual operator the outputs that nobody reads.

    Releases 1.16 to 1.18 plan memory for them in which another value still is: wrong numbers. Of
    this package's operators, which are functions, the runtime wants all outputs.
    """
    if MICROSOFT_DOMAIN not in model.opset_imports:
        return
    for graph in all_graphs(model):
        for node in graph:
            if node.domain != MICROSOFT_DOMAIN or node.op_type != SKIP_SIMPLIFIED:
                continue
            read = [bool(v.uses()) or v.is_graph_output() for v in node.outputs]
            read[0] = True  # the only output that the operator must have
            for value, is_read in zip(node.outputs, read, strict=True):
                value.name = value.name if is_read else ""
            node.resize_outputs(max(i for i, is_read in enumerate(read, 1) if is_read))


def _remove_dead(candidates: list[ir.Node]) -> None:
    """Remove these nodes and what they alone used, as far as nobody needs them.

    In waves, so that a constant which thousands of norms share is looked at a few times, not once
    for each of them.
    """
    wave = dict.fromkeys(candidates)
    loose: dict[ir.Value, None] = {}
    while wave:
        gone: dict[ir.Graph, list[ir.Node]] = {}
        for node in wave:
            graph = node.graph
            if graph is not None and not any(v.is_graph_output() or v.uses() for v in node.outputs):
                gone.setdefault(graph, []).append(node)
        wave = {}
        for graph, nodes in gone.items():
            inputs = [v for node in nodes for v in node.inputs if v is not None]
            graph.remove(nodes, safe=True)
            for value in inputs:
                producer = value.producer()
                if producer is None:
                    loose[value] = None
                elif producer.graph is not None:
                    wave[producer] = None
    for value in loose:
        if not value.is_initializer() or value.is_graph_input() or value.is_graph_output():
            continue
        if value.graph is not None and value.name and not value.uses():
            value.graph.initializers.pop(value.name, None)


def _drop_unused_own(model: ir.Model) -> None:
    """Drop functions and the import of this package's domain that no node needs any more."""
    if DOMAIN not in model.opset_imports:
        return
    called = {n.op_identifier() for graph in all_graphs(model) for n in graph if n.domain == DOMAIN}
    foreign = foreign_functions(model)
    for key in list(model.functions):
        if key[0] == DOMAIN and key not in called and key not in foreign:
            del model.functions[key]
    if not called and not any(key[0] == DOMAIN for key in model.functions):
        del model.opset_imports[DOMAIN]

"""Walk nested graphs, and put right harmless oddities: nodes out of order, negative sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.recognize.bodies import bodies_of


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Return the graphs in the attributes of a node."""
    return (graph for _, graph in bodies_of(node))


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the bodies of the functions, and every subgraph of these."""
    return graphs_in(model.graph, *(function.graph for function in model.functions.values()))


def nodes_of(model: ir.Model) -> Iterator[ir.Node]:
    """Return the nodes of all these graphs."""
    return chain.from_iterable(all_graphs(model))


def graphs_in(*graphs: ir.Graph) -> Iterator[ir.Graph]:
    """Yield graphs and every subgraph of these."""
    waiting = list(graphs)
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph:
            if node.attributes.data:
                waiting += subgraphs(node)


def variables_in(graphs: Iterable[ir.Graph]) -> Iterator[ir.Value]:
    """Yield the inputs of graphs, and what their nodes compute; not those of subgraphs."""
    for graph in graphs:
        yield from chain(graph.inputs, *(node.outputs for node in graph))


def values_in(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs, the initializers and the outputs of the nodes of one graph."""
    outputs = (value for node in graph for value in node.outputs)
    return [*graph.inputs, *graph.initializers.values(), *outputs]


def are_needed(values: Iterable[ir.Value]) -> bool:
    """Return whether one of these is read, or given by its graph."""
    return any(value.is_graph_output() or value.uses() for value in values)


def insert(graph: ir.Graph | ir.Function | None, after: ir.Node | None, *nodes: ir.Node) -> None:
    """Put nodes behind one of a graph, or at its beginning."""
    assert graph is not None
    if after is not None and after.graph is graph:
        graph.insert_after(after, nodes)
    elif len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def replace(node: ir.Node, nodes: Sequence[ir.Node], results: Sequence[ir.Value]) -> None:
    """Put nodes in the place of one; the results are in the place of its first outputs."""
    assert node.graph is not None
    old = node.outputs[: len(results)]
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], nodes, old, results)


def label(node: ir.Node) -> str:
    """Return the name and operator of a node, safe to print."""
    op = short(node.op_type)
    return f"{quoted(node.name)} ({op})" if node.name else f"a {op} node"


def sort_graphs(model: ir.Model) -> None:
    """Sort every graph topologically, in place.

    Raises:
        InputError: there is a cycle.
    """
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        what = "The graph has a cycle: nodes that need each other's outputs."
        fix = "repair the program that wrote the model; ONNX graphs must be acyclic"
        raise InputError(what, found=short(str(error)), fix=fix) from error


def forget_negative_dims(model: ir.Model) -> int:
    """Make negative dimensions of values unknown, as runtimes read them; return how many had one.

    Some exporters write -1 for "any size". Taken as a number it would give wrong row lengths.
    """
    changed = 0
    for value in variables_in(all_graphs(model)):
        dims = () if value.shape is None else value.shape.dims
        read = [None if isinstance(dim, int) and dim < 0 else dim for dim in dims]
        if read != list(dims):
            value.shape = ir.Shape(read)
            changed += 1
    return changed

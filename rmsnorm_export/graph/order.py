"""Walk nested graphs, and put their nodes in topological order."""

from __future__ import annotations

import graphlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short

K = TypeVar("K", bound=Hashable)

_NESTED = frozenset((ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS))


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attributes.data.values():  # the dict itself: asked of every node, often
        if attribute.type not in _NESTED or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        else:
            yield from attribute.as_graphs()


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, each followed by those of its subgraphs."""
    for node in graph:
        yield node
        for subgraph in subgraphs(node):
            yield from all_nodes(subgraph)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the bodies of the functions, and every subgraph of these."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph:
            if node.attributes.data:
                waiting += subgraphs(node)


def label(node: ir.Node) -> str:
    """Return the name and operator of a node, safe to print."""
    op = short(node.op_type)
    return f"{quoted(node.name)} ({op})" if node.name else f"a {op} node"


def sort_graphs(model: ir.Model) -> None:
    """Sort every graph topologically, in place.

    Raises:
        InputError: naming the nodes of a cycle.
    """
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        circles = (cycle_in({node: _needs(node) for node in graph}) for graph in all_graphs(model))
        names = [label(node) for node in next(filter(None, circles), ())]
        if len(names) > 6:
            names = [*names[:5], f"... {len(names) - 6} more ...", names[-1]]
        raise InputError(
            "The graph has a cycle: nodes that need each other's outputs.",
            found=" <- ".join(names) or short(str(error)),
            fix="repair the program that wrote the model; ONNX graphs must be acyclic",
        ) from error


def cycle_in(edges: Mapping[K, Sequence[K]]) -> list[K]:
    """Return a closed walk, its first element repeated at the end; [] where there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _needs(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of the same graph that must come before this one and its subgraphs."""
    readers = [node]
    for subgraph in subgraphs(node):
        readers += all_nodes(subgraph)
    producers = (value.producer() for one in readers for value in one.inputs if value is not None)
    return [one for one in producers if one is not None and one.graph is node.graph]

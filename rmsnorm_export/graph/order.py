"""Topological order: walking nested graphs, sorting them, naming the cycle if there is one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short

K = TypeVar("K", bound=Hashable)

_NESTED = frozenset((ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS))


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in the attributes of ``node``."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _is_nest(node: ir.Node) -> bool:
    """Whether a graph may be among the attributes; asked of every node of a model, many times."""
    attributes = node.attributes.data  # the dict itself, which is walked twice as fast
    if attributes:
        for attribute in attributes.values():
            if attribute.type in _NESTED:
                return True
    return False


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of ``graph``, each followed by those of its subgraphs."""
    for node in graph:
        yield node
        if _is_nest(node):
            for subgraph in subgraphs(node):
                yield from all_nodes(subgraph)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the bodies of the functions, and every subgraph of these."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph:
            if _is_nest(node):
                waiting += subgraphs(node)


def label(node: ir.Node) -> str:
    """Name and operator of a node, safe to print."""
    op = short(node.op_type)
    return f"{quoted(node.name)} ({op})" if node.name else f"a {op} node"


def sort_graphs(model: ir.Model) -> None:
    """Sort every graph of ``model`` topologically, in place.

    Raises:
        InputError: naming the nodes of a cycle.
    """
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        for graph in all_graphs(model):
            circle = find_cycle({node: _needs(node) for node in graph})
            if circle:
                raise _cycle_error(circle) from error
        raise InputError(
            "The nodes of the model cannot be put in order.",
            found=short(str(error)),
            fix="repair the program that wrote the model",
        ) from error


def find_cycle(edges: Mapping[K, Sequence[K]]) -> list[K]:
    """A closed walk along ``edges`` (first element repeated at the end), or [] if there is none.

    Depth first without recursion, linear in keys and edges.
    """
    done: set[K] = set()
    for start in edges:
        if start in done:
            continue
        path: dict[K, Iterator[K]] = {start: iter(edges[start])}
        stack = [start]
        while stack:
            for follower in path[stack[-1]]:
                if follower in path:
                    return [*stack[stack.index(follower) :], follower]
                if follower not in done and follower in edges:
                    path[follower] = iter(edges[follower])
                    stack.append(follower)
                    break
            else:
                done.add(stack[-1])
                del path[stack.pop()]
    return []


def _needs(node: ir.Node) -> list[ir.Node]:
    """The nodes of the same graph that must come before ``node``, those for its subgraphs too."""
    readers = [node]
    for subgraph in subgraphs(node):
        readers += all_nodes(subgraph)
    producers = (
        value.producer() for reader in readers for value in reader.inputs if value is not None
    )
    return [
        producer for producer in producers if producer is not None and producer.graph is node.graph
    ]


def _cycle_error(circle: Sequence[ir.Node]) -> InputError:
    names = [label(node) for node in circle]
    if len(names) > 6:
        names = [*names[:5], f"... {len(names) - 6} more ...", names[-1]]
    return InputError(
        "The graph has a cycle: nodes that need each other's outputs.",
        found=" <- ".join(names),
        fix="repair the program that wrote the model; ONNX graphs must be acyclic",
    )

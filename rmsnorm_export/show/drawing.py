"""The graph of a site before and after its rewrite: a table with a row for each node."""

from __future__ import annotations

from collections.abc import Iterable

from rmsnorm_export.printable import plural
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph
from rmsnorm_export.show.text import Table

MOST_NODES = 64
"""Nodes shown of a graph; a report from elsewhere may hold any number."""

_AXES = {f"Reduce{what}" for what in ("Mean", "Sum", "SumSquare", "L2")} | {"Unsqueeze", "Squeeze"}
_SECOND = {"Reshape": "shape=", **dict.fromkeys(_AXES, "axes=")}
"""Operator -> name of its second operand, where the number alone could be taken for another."""


def graph_tables(drawn: Drawing) -> list[Table]:
    """Return both sides of a rewrite; names and shapes are those of its site."""
    sides = (("Before", drawn.before), ("After", drawn.after))
    return [
        _table(f"{when}: {plural(len(graph.nodes), 'node')} of {drawn.site}", graph)
        for when, graph in sides
        if graph is not None
    ]


def _table(title: str, graph: Subgraph) -> Table:
    """Return the nodes in order; what one of them gives goes by its number in those after it."""
    values, rows = dict(enumerate(graph.values)), []
    given: dict[int, int] = {}
    for number, node in enumerate(graph.nodes[:MOST_NODES], 1):
        operands = [
            f"#{given[position]}" if position in given else _operand(node, place, values[position])
            for place, position in enumerate(node.inputs)
            if position in values
        ]
        attributes = [f"{name}={value}" for name, value in node.attributes]
        outputs = [_described(values[position]) for position in node.outputs if position in values]
        cells = map("; ".join, (operands, attributes, outputs))
        rows.append([str(number), node.op, *cells])
        given |= dict.fromkeys(node.outputs, number)
    return Table(title, ("#", "operator", "takes", "attributes", "gives"), rows, numbers=("#",))


def _operand(node: DrawnNode, place: int, value: DrawnValue) -> str:
    if value.constant:
        return f"{_SECOND.get(node.op, '') if place == 1 else ''}{value.constant}"
    return _described(value)


def _described(value: DrawnValue) -> str:
    """Return the role, the name, the type and the shape of a value, as far as they are known."""
    parts: Iterable[str] = (f"{value.role}:" if value.role else "", value.name, value.dtype)
    return " ".join(filter(None, (*parts, value.shape)))

"""The nodes of a site before and after its rewrite, as tables: a row a node, in graph order."""

from __future__ import annotations

from rmsnorm_export.printable import plural
from rmsnorm_export.rewrite.drawing import Drawing, DrawnValue, Subgraph
from rmsnorm_export.show.text import Block, Table

_HEADS = ("node", "operator", "takes", "attributes", "gives")


def node_tables(drawn: Drawing) -> list[Block]:
    """Return both sides of a rewrite; names and shapes are those of one site."""
    sides = {f"Before, at {drawn.site}": drawn.before, "After": drawn.after}
    return [
        Table(f"{when}: {plural(len(graph.nodes), 'node')}", _HEADS, _node_rows(graph), ("node",))
        for when, graph in sides.items()
        if graph is not None
    ]


def _node_rows(graph: Subgraph) -> list[list[str]]:
    """Return a row a node: of what it takes the number of the node that gives it, or the value."""
    sources = {
        value: f"#{number}"
        for number, node in enumerate(graph.nodes, 1)
        for value in node.outputs
        if value >= 0
    }
    texts = dict(enumerate(map(_text, graph.values)))  # a report from elsewhere may name others
    ends = {position: text for position, text in texts.items() if graph.values[position].role}
    return [
        [
            str(number),
            node.op,
            ", ".join(sources.get(value) or texts.get(value, "none") for value in node.inputs),
            ", ".join(f"{name}={value}" for name, value in node.attributes),
            ", ".join(ends[value] for value in node.outputs if value in ends),
        ]
        for number, node in enumerate(graph.nodes, 1)
    ]


def _text(value: DrawnValue) -> str:
    role = value.role and f"{value.role}:"
    return value.constant or " ".join(filter(None, (role, value.name, value.dtype, value.shape)))

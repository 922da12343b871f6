"""The nodes of a site as a drawing: a chain that runs down, the rest beside it.

A norm is a chain of some ten nodes. The longest path to ``y`` is the spine, one node a row. What
else a node takes (scale, gate, residual) stands to its right, as a small tree that ends in inputs
and in references to what is drawn already. A constant of one number is written into the node that
takes it. The browser lays it out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

from rmsnorm_export.printable import plural, printable
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph

BoxKind = Literal["op", "in", "out", "ref"]

MOST_NODES = 64
"""Nodes drawn of a graph; a report from elsewhere may hold any number."""

_OPERATOR, _NAME, _DETAILS = 40, 26, 60
"""Characters of an operator, a name, and attributes or a shape; the whole is in the title."""

_OPERAND_NAMES = {
    **{(f"Reduce{what}", 1): "axes=" for what in ("Mean", "Sum", "SumSquare", "L2")},
    **{(op, 1): "axes=" for op in ("Unsqueeze", "Squeeze")},
    ("Reshape", 1): "shape=",
}
"""Name of a constant operand, where the number alone could be taken for another."""

_RANKS = {role: rank for rank, role in enumerate(("x", "residual", "gate", "scale", "bias"))}
_OUTPUTS = ("y", "sum", "other")


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A node, an input or output, or a reference to a value that is drawn elsewhere.

    Attributes:
        kind: which of these.
        name: operator, or role and name of the value.
        details: attributes and constants, or type and shape.
        title: all there is to say.
        number: of a node in the order of the graph, from 1; of a reference that of the node that
            gives the value; 0: none.
        sides: inputs from the right, from the top down.
    """

    kind: BoxKind
    name: str
    details: str
    title: str
    number: int = 0
    sides: tuple[Box, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A node of the spine, or one that leads nowhere.

    Attributes:
        box: the node.
        outputs: of the site that it gives, ``y`` first.
        link: the value that goes on to the next row; None: there is none.
    """

    box: Box
    outputs: tuple[Box, ...]
    link: Box | None


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """One graph: the input that enters from above, if there is one, and its rows."""

    caption: str
    head: Box | None
    rows: tuple[Row, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Pictures:
    """The graph of a site, before and after; ``site`` is the one whose names are shown."""

    sides: Sequence[Picture]
    site: str
    kind: ClassVar[str] = "pictures"


def shortened(text: str, limit: int) -> str:
    """Return ``text`` without its middle where it is longer than ``limit``, made printable."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}\u2026{text[-half:]}"
    return printable(text)


def pictures(drawn: Drawing) -> Pictures:
    """Draw both sides of a rewrite."""
    sides = [
        _Arrangement(graph).picture(f"{when}: {plural(len(graph.nodes), 'node')}")
        for when, graph in (("Before", drawn.before), ("After", drawn.after))
        if graph is not None
    ]
    return Pictures(sides, drawn.site)


class _Arrangement:
    """The order of one graph: its spine, and what is drawn already."""

    def __init__(self, graph: Subgraph) -> None:
        self.values = graph.values
        self.nodes = [_sound(node, len(graph.values)) for node in graph.nodes[:MOST_NODES]]
        self.producer: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for value in node.outputs:
                self.producer.setdefault(value, index)
        self.drawn: set[int] = set()
        self.spine = self._spine()

    def picture(self, caption: str) -> Picture:
        links = [self._entering()]
        for above, index in itertools.pairwise(self.spine):
            inputs = self.nodes[index].inputs
            links.append(next(value for value in inputs if self.producer.get(value) == above))
        head = self._pill("in", links[0]) if links[0] >= 0 else None
        rows = [self._row(*each) for each in zip(self.spine, links, [*links[1:], -1], strict=False)]
        # What leads nowhere from y (a second reader of x, say) is part of the site, too.
        for index in range(len(self.nodes)):
            if index not in self.drawn:
                rows.append(self._row(index, -1, -1))
        return Picture(caption, head, tuple(rows))

    def _spine(self) -> list[int]:
        """Return the nodes of the longest path to y; nodes are in topological order."""
        above = [
            [p for v in node.inputs if (p := self.producer.get(v, index)) < index]
            for index, node in enumerate(self.nodes)
        ]
        depth: list[int] = []
        for indices in above:
            depth.append(1 + max((depth[p] for p in indices), default=0))
        ends = [v for v, value in enumerate(self.values) if value.role == "y"]
        last = next((self.producer[v] for v in ends if v in self.producer), len(self.nodes) - 1)
        path = [last] if self.nodes else []
        while path and above[path[-1]]:
            path.append(max(above[path[-1]], key=lambda p: depth[p]))
        return path[::-1]

    def _entering(self) -> int:
        """Return the value that enters the first row from above: x where it does; -1: none."""
        inputs = self.nodes[self.spine[0]].inputs if self.spine else ()
        free = [v for v in inputs if not self.values[v].constant and v not in self.producer]
        return min(free, key=lambda v: _RANKS.get(self.values[v].role, len(_RANKS)), default=-1)

    def _row(self, index: int, entering: int, below: int) -> Row:
        outputs = [v for v in self.nodes[index].outputs if self.values[v].role in _OUTPUTS]
        outputs.sort(key=lambda v: self.values[v].role != "y")
        link = self._pill("ref", below) if below >= 0 else None
        return Row(self._node(index, entering), tuple(self._pill("out", v) for v in outputs), link)

    def _node(self, index: int, entering: int) -> Box:
        """Return a node with all that it takes but ``entering`` and constants at its side."""
        self.drawn.add(index)
        node = self.nodes[index]
        words = [f"{name}={value}" for name, value in node.attributes]
        for position, value in enumerate(node.inputs):
            if constant := self.values[value].constant:
                words.append(f"{_OPERAND_NAMES.get((node.op, position), '')}{constant}")
        sides = tuple(
            self._side(value, index)
            for value in dict.fromkeys(node.inputs)
            if value != entering and not self.values[value].constant
        )
        whole = " ".join([node.op, shortened(node.name, 400), *words])
        details = shortened(", ".join(words), _DETAILS)
        name = shortened(node.op, _OPERATOR)
        return Box("op", name, details, shortened(whole, 900), index + 1, sides)

    def _side(self, value: int, reader: int) -> Box:
        source = self.producer.get(value, reader)
        if source >= reader:
            return self._pill("in", value)
        if source in self.drawn or source in self.spine:
            return self._pill("ref", value)
        return self._node(source, -1)

    def _pill(self, kind: BoxKind, value: int) -> Box:
        drawn = self.values[value]
        name = shortened(drawn.name or "?", _NAME)
        number = 1 + self.producer.get(value, -1) if kind == "ref" else 0
        whole = f"{drawn.role or 'value'} {shortened(drawn.name, 400)} {_typed(drawn)}"
        named = f"{drawn.role}: {name}" if drawn.role else name
        return Box(kind, named, _typed(drawn), whole, number)


def _sound(node: DrawnNode, values: int) -> DrawnNode:
    """Return a node without references to values that the graph has not."""
    inputs, outputs = (
        tuple(v for v in positions if 0 <= v < values) for positions in (node.inputs, node.outputs)
    )
    return dataclasses.replace(node, inputs=inputs, outputs=outputs)


def _typed(value: DrawnValue) -> str:
    """Return type and shape of a value, as far as they are known."""
    return shortened(f"{value.dtype or '?'} {value.shape}".strip(), _DETAILS)

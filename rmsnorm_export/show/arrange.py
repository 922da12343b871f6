"""How the nodes of a site hang together on a drawing: a chain that runs down, the rest beside it.

A norm is a chain of some ten nodes. The longest path to ``y`` is the spine, one node a row. What
else a node takes (scale, gate, residual) stands to its right, as a small tree that ends in inputs;
a value of the spine that is needed further down runs along a lane on the left. A constant of one
number is written into the node that takes it. ``graph`` gives all of it coordinates.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterator
from typing import Literal

from rmsnorm_export.printable import printable
from rmsnorm_export.rewrite.drawing import DrawnNode, DrawnValue, Subgraph

BoxKind = Literal["op", "in", "out", "ref"]

LINE, SMALL, LARGE, PAD = 13, 6.65, 7.3, 8
"""CSS pixels: height of a line of text, width of a character of attributes and of an operator's
name (monospace, so widths are counted and not measured), space between text and border."""

NAME = 26
"""Characters of a value's name on a drawing; the whole is in the title of its element."""

_WIDEST = 34
_OPERAND_NAMES = {
    **{(f"Reduce{what}", 1): "axes=" for what in ("Mean", "Sum", "SumSquare", "L2")},
    **{(op, 1): "axes=" for op in ("Unsqueeze", "Squeeze")},
    ("Reshape", 1): "shape=",
}
"""What a constant operand is called, where the number alone could be taken for another."""

_INPUTS = ("x", "residual", "gate", "scale", "bias")
_OUTPUTS = ("y", "sum", "other")


@dataclasses.dataclass(slots=True, eq=False)
class Box:
    """A node, an input or output, or a reference to a value that is drawn elsewhere.

    Attributes:
        kind: which of these.
        lines: its text.
        title: all there is to say, line by line.
        number: of a node in the order of the graph, from 1; 0 for the others.
        sides: what comes into it from the right, from the top down.
        x, y, width, height: its place; x and y are given by ``graph``.
    """

    kind: BoxKind
    lines: tuple[str, ...]
    title: str
    number: int = 0
    sides: list[Box] = dataclasses.field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def texts(self) -> Iterator[tuple[float, float, str, str]]:
        """Yield place, style and text of each line, and of the number in front of the first."""
        x, y = self.middle
        first = y - LINE * (len(self.lines) - 1) / 2 + 4
        for row, line in enumerate(self.lines):
            style = "op" if self.kind == "op" and row == 0 else ""
            yield x if row or not self.number else x + 7, first + row * LINE, style, line
        if self.number:
            yield self.x + PAD + 1, first, "no", str(self.number)


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """A node of the spine, or one that leads nowhere.

    Attributes:
        box: the node.
        outputs: of the site that it gives, ``y`` first.
        link: the value that goes on to the next row; None in the last one.
    """

    box: Box
    outputs: list[Box]
    link: DrawnValue | None


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """Name, type and shape of a value, beside its wire."""

    x: float
    y: float
    lines: tuple[str, ...]
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What to draw, in a field of ``width`` by ``height``."""

    width: float
    height: float
    boxes: list[Box]
    wires: list[str]
    labels: list[Label]


def shortened(text: str, limit: int) -> str:
    """Return ``text`` without its middle where it is longer than ``limit``, made printable."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}\u2026{text[-half:]}"
    return printable(text)


def columns(text: str) -> int:
    """Width of ``text`` in characters of a monospace font; East Asian ones are two wide."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def typed(value: DrawnValue, limit: int = _WIDEST) -> str:
    """Type and shape of a value, as far as they are known."""
    return shortened(f"{value.dtype or '?'} {value.shape}".strip(), limit)


def in_full(value: DrawnValue) -> str:
    """A value in full, for a title."""
    return f"{value.role or 'value'} {shortened(value.name, 400)}\n{typed(value, 200)}"


def sound(graph: Subgraph) -> Subgraph:
    """``graph`` without references to values that it has not; a report may come from a file."""

    def known(positions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(v if 0 <= v < len(graph.values) else -1 for v in positions)

    nodes = (
        dataclasses.replace(node, inputs=known(node.inputs), outputs=known(node.outputs))
        for node in graph.nodes
    )
    return dataclasses.replace(graph, nodes=tuple(nodes))


class Arrangement:
    """What is drawn of one graph, without places.

    Attributes:
        head: the input that enters the spine from above.
        rows: from the top, every node in one of them or at the side of one; those of the spine,
            which are linked, come first.
        spine: positions of the nodes of these.
        lanes: (row of the source, -1 for ``head``; row of the reader; lane from the inside).
    """

    def __init__(self, graph: Subgraph) -> None:
        graph = sound(graph)
        self.values, self.nodes = graph.values, graph.nodes
        self.producer: dict[int, int] = {}
        for index, node in enumerate(graph.nodes):
            for value in node.outputs:
                if value >= 0:
                    self.producer.setdefault(value, index)
        self.drawn: set[int] = set()
        self.spine = self._spine()
        self.entering = self._entering()
        self.rows = self._rows()
        self.head = self._pill("in", self.entering) if self.entering >= 0 else None
        self.lanes = self._lanes()

    def _rows(self) -> list[Row]:
        rows = []
        for position, index in enumerate(self.spine):
            entering = self.entering if position == 0 else self._link(position)
            last = position + 1 == len(self.spine)
            link = None if last else self.values[self._link(position + 1)]
            rows.append(self._row(index, entering, link))
        # What leads nowhere from y (a second reader of x, say) still is part of the site.
        rest = (index for index in range(len(self.nodes)) if index not in self.drawn)
        return rows + [self._row(index, -1, None) for index in rest if index not in self.drawn]

    def _spine(self) -> list[int]:
        """The nodes of the longest path to y, from the top; nodes are in topological order."""
        depth: list[int] = []
        for index, node in enumerate(self.nodes):
            above = (self.producer.get(value, index) for value in node.inputs)
            depth.append(1 + max((depth[p] for p in above if p < index), default=0))
        ends = (i for i, value in enumerate(self.values) if value.role == "y")
        node_at = next((self.producer[i] for i in ends if i in self.producer), len(self.nodes) - 1)
        path = [node_at] if node_at >= 0 else []
        while path:
            inputs = self.nodes[path[-1]].inputs
            above_it = [p for v in inputs if (p := self.producer.get(v, -1)) in range(path[-1])]
            if not above_it:
                break
            path.append(max(above_it, key=lambda p: depth[p]))
        return path[::-1]

    def _entering(self) -> int:
        """The value that enters the first row from above: x where it does; -1: none."""
        inputs = self.nodes[self.spine[0]].inputs if self.spine else ()
        free = [v for v in inputs if v >= 0 and not self.values[v].constant]
        return min((v for v in free if v not in self.producer), key=self._rank, default=-1)

    def _rank(self, value: int) -> int:
        role = self.values[value].role
        return _INPUTS.index(role) if role in _INPUTS else len(_INPUTS)

    def _link(self, position: int) -> int:
        """The value that enters a row of the spine from the one above."""
        above = self.spine[position - 1]
        inputs = self.nodes[self.spine[position]].inputs
        return next(value for value in inputs if self.producer.get(value) == above)

    def _row(self, index: int, entering: int, link: DrawnValue | None) -> Row:
        box = self._box(index)
        box.sides = self._sides(index, entering)
        outputs = [v for v in self.nodes[index].outputs if v >= 0]
        outputs = [v for v in outputs if self.values[v].role in _OUTPUTS]
        outputs.sort(key=lambda v: self.values[v].role != "y")
        return Row(box, [self._pill("out", value) for value in outputs], link)

    def _box(self, index: int) -> Box:
        node = self.nodes[index]
        self.drawn.add(index)
        words = [f"{name}={value}" for name, value in node.attributes]
        for position, value in enumerate(node.inputs):
            if value >= 0 and self.values[value].constant:
                operand = _OPERAND_NAMES.get((node.op, position), "")
                words.append(f"{operand}{self.values[value].constant}")
        lines = (shortened(node.op, _WIDEST), *_wrapped(words))
        return _sized(Box("op", lines, _node_in_full(node), number=index + 1))

    def _sides(self, index: int, entering: int) -> list[Box]:
        """What a node takes from the right: all but constants, the spine and the lanes."""
        sides = []
        for value in dict.fromkeys(self.nodes[index].inputs):
            if value < 0 or value == entering or self.values[value].constant:
                continue
            source = self.producer.get(value, -1)
            if source in self.spine or value == self.entering:
                if index not in self.spine:
                    sides.append(self._pill("ref", value))
            elif source < 0 or source >= index:
                sides.append(self._pill("in", value))
            elif source in self.drawn:
                sides.append(self._pill("ref", value))
            else:
                box = self._box(source)
                box.sides = self._sides(source, -1)
                sides.append(box)
        return sides

    def _pill(self, kind: BoxKind, value: int) -> Box:
        drawn = self.values[value]
        name = shortened(drawn.name or "?", NAME)
        if kind == "ref":
            return _sized(Box(kind, (name,), in_full(drawn)))
        lines = (f"{drawn.role}: {name}" if drawn.role else name, typed(drawn))
        return _sized(Box(kind, lines, in_full(drawn)))

    def _lanes(self) -> list[tuple[int, int, int]]:
        """Values of the spine that are needed further down; short lanes are inside."""
        row_of = {index: position for position, index in enumerate(self.spine)}
        spans = set()
        for position, index in enumerate(self.spine):
            for value in self.nodes[index].inputs:
                source = row_of.get(self.producer.get(value, -1), -1)
                if (source >= 0 or value == self.entering >= 0) and source + 1 < position:
                    spans.add((source, position))
        lanes: list[tuple[int, int, int]] = []
        for source, position in sorted(spans, key=lambda span: (span[1] - span[0], span)):
            lane = 0
            while any(own == lane and a < position and source < b for a, b, own in lanes):
                lane += 1
            lanes.append((source, position, lane))
        return lanes


def _node_in_full(node: DrawnNode) -> str:
    attributes = (f"{shortened(k, 100)} = {shortened(v, 200)}" for k, v in node.attributes)
    return "\n".join([f"{shortened(node.op, 100)} {shortened(node.name, 400)}", *attributes])


def _sized(box: Box) -> Box:
    head = columns(box.lines[0]) * (LARGE if box.kind == "op" else SMALL)
    head += 3 * SMALL if box.number else 0
    widest = max(columns(line) for line in box.lines) * SMALL
    box.width = round(max(head, widest) + 2 * PAD)
    box.height = LINE * len(box.lines) + 9
    return box


def _wrapped(words: list[str]) -> list[str]:
    """``words`` in at most three lines; what does not fit is left out."""
    lines: list[str] = []
    for word in words:
        short = shortened(word, _WIDEST - 2)
        if lines and columns(lines[-1]) + columns(short) + 2 <= _WIDEST:
            lines[-1] += f", {short}"
        elif len(lines) == 3:
            lines[-1] += " \u2026"
            break
        else:
            lines.append(short)
    return lines

"""A site's nodes, before and after: an ``Arrangement`` with coordinates, which a template draws."""

from __future__ import annotations

import itertools

from rmsnorm_export.printable import plural
from rmsnorm_export.rewrite.drawing import Drawing, DrawnValue, Subgraph
from rmsnorm_export.show.arrange import (
    NAME,
    SMALL,
    Arrangement,
    Box,
    Label,
    Layout,
    Row,
    columns,
    in_full,
    shortened,
    sound,
    typed,
)
from rmsnorm_export.show.page import Pictures

_MARGIN, _LANE = 6.0, 13.0
_GAP, _GAP_LABELLED, _GAP_SIDE = 22.0, 38.0, 26.0
"""Between rows, between rows with a label in between, between a node and what is beside it."""


Wire = tuple[tuple[float, float], ...]
"""The corners of a line with an arrow at its end."""


def arrange(graph: Subgraph) -> Layout:
    """Place every node of ``graph``."""
    return _Placing(Arrangement(graph)).layout()


class _Placing:
    def __init__(self, structure: Arrangement) -> None:
        self.drawn = structure
        self.boxes: list[Box] = []
        self.wires: list[Wire] = []
        self.labels: list[Label] = []
        chain = [*([structure.head] if structure.head else []), *(r.box for r in structure.rows)]
        lanes = 1 + max((lane for *_, lane in structure.lanes), default=-1)
        chain += [row.outputs[0] for row in structure.rows if row.outputs]
        widest = max((box.width for box in chain), default=0.0)
        self.edge = _MARGIN + lanes * _LANE + 4
        self.centre = self.edge + widest / 2
        self.y = _MARGIN

    def layout(self) -> Layout:
        structure = self.drawn
        linked: list[Box] = []
        if structure.head is not None:
            self._put(structure.head, self.centre - structure.head.width / 2, self.y)
            self.y += structure.head.height + _GAP
            linked.append(structure.head)
        for position, row in enumerate(structure.rows):
            self._row(row, last=position + 1 >= len(structure.spine))
        linked += [row.box for row in structure.rows[: len(structure.spine)]]
        for above, below in itertools.pairwise(linked):
            self.wires.append(((self.centre, above.bottom), (self.centre, below.y)))
        for row in structure.rows:
            self._sides(row.box)
        self._lanes()
        return self._extent()

    def _put(self, box: Box, x: float, y: float) -> None:
        box.x, box.y = x, y
        self.boxes.append(box)

    def _row(self, row: Row, *, last: bool) -> None:
        """The node, as high as what comes in beside it, and what leaves it below."""
        box = row.box
        beside = sum(map(_tall, box.sides))
        if len(box.sides) > 1:
            box.height = max(box.height, beside - 8)
        room = max(box.height, beside)
        self._put(box, self.centre - box.width / 2, self.y + (room - box.height) / 2)
        self.y += room
        if last:
            self._ends(row)
        elif row.outputs:
            self.y += _GAP
            self._branches(row)
        else:
            if row.link is not None:
                name = shortened(row.link.name or "?", NAME)
                lines = (name, typed(row.link, NAME + 4))
                label = Label(self.centre + 8, box.bottom + 14, lines, in_full(row.link))
                self.labels.append(label)
            self.y += _GAP_LABELLED

    def _ends(self, row: Row) -> None:
        """Outputs of the last node: the first below it, further ones beside that."""
        box = row.box
        self.y += _GAP
        left = self.centre
        for position, pill in enumerate(row.outputs):
            if position == 0:
                self._put(pill, self.centre - pill.width / 2, self.y)
                self.wires.append(((self.centre, box.bottom), (self.centre, self.y)))
                left = max(pill.x + pill.width, box.x + box.width) + 14
                continue
            self._put(pill, left, self.y)
            left += pill.width + 14
            start, level = box.x + box.width - 12, box.bottom + 8
            end = pill.middle[0]
            points = ((start, box.bottom), (start, level), (end, level), (end, self.y))
            self.wires.append(points)
        self.y += max((pill.height for pill in row.outputs), default=0.0) + _GAP

    def _branches(self, row: Row) -> None:
        """Outputs of a node that the chain goes on from: beside its wire."""
        self.y -= _GAP - 10
        for pill in row.outputs:
            self._put(pill, self.centre + 28, self.y)
            level = pill.middle[1]
            points = ((self.centre, row.box.bottom), (self.centre, level), (pill.x, level))
            self.wires.append(points)
            self.y += pill.height + 8
        self.y += _GAP - 10

    def _sides(self, box: Box) -> None:
        left = box.x + box.width + _GAP_SIDE
        y = box.middle[1] - sum(map(_tall, box.sides)) / 2
        for side in box.sides:
            tall = _tall(side)
            self._put(side, left, y + (tall - side.height) / 2)
            level = side.middle[1]
            # A small node beside a high tree is entered at its edge.
            into = min(max(level, box.y + 6), box.bottom - 6)
            bend = side.x - _GAP_SIDE / 2
            bent = ((bend, level), (bend, into)) if into != level else ()
            points = ((side.x, level), *bent, (box.x + box.width, into))
            self.wires.append(points)
            self._sides(side)
            y += tall

    def _lanes(self) -> None:
        head = self.drawn.head
        rows = [row.box for row in self.drawn.rows]
        for source, position, lane in self.drawn.lanes:
            start, target = head if source < 0 else rows[source], rows[position]
            if start is None:
                continue
            x = self.edge - 4 - lane * _LANE - _LANE / 2
            turn, into = start.bottom + 7, target.middle[1]
            points = ((self.centre, turn), (x, turn), (x, into), (target.x, into))
            self.wires.append(points)

    def _extent(self) -> Layout:
        right = [box.x + box.width for box in self.boxes]
        for label in self.labels:
            right.append(label.x + max(map(columns, label.lines)) * SMALL)
        bottom = max((box.bottom for box in self.boxes), default=0.0)
        width = max(right, default=0.0) + _MARGIN
        return Layout(width, bottom + _MARGIN, self.boxes, [*map(_path, self.wires)], self.labels)


def _tall(box: Box) -> float:
    """Height of a side tree, with the space around it."""
    return max(box.height + 8, sum(map(_tall, box.sides)))


def pictures(drawn: Drawing) -> Pictures:
    """Draw both sides of a rewrite."""
    sides = [("Before", drawn.before), ("After", drawn.after)]
    return Pictures(
        [
            (f"{when}: {plural(len(graph.nodes), 'node')}", arrange(graph), spoken(graph))
            for when, graph in sides
            if graph is not None
        ],
        drawn.site,
    )


def spoken(graph: Subgraph) -> str:
    """The graph as a sentence per node, for who cannot see it."""
    graph, sentences = sound(graph), []
    for number, node in enumerate(graph.nodes, 1):
        takes = [_called(graph.values[v]) for v in node.inputs if v >= 0]
        gives = [_name(graph.values[v].name) for v in node.outputs if v >= 0]
        with_ = "".join(f" {_name(k)}={_name(value)}" for k, value in node.attributes)
        sentence = f"{number}: {_name(node.op)}{with_} of {', '.join(takes)}"
        sentences.append(f"{sentence} gives {', '.join(gives)}")
    return ". ".join(sentences) + "."


def _called(value: DrawnValue) -> str:
    if value.constant:
        return _name(value.constant)
    return f"{value.role} {_name(value.name)}" if value.role else _name(value.name)


def _name(text: str) -> str:
    return shortened(text or "?", 100)


def _path(wire: Wire) -> str:
    """Return the SVG path of a wire."""
    start, *rest = wire
    path = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in rest)
    (x0, y0), (x1, y1) = wire[-2:]
    dx, dy = _sign(x1 - x0), _sign(y1 - y0)
    ends = [(x1 - 5 * dx - 3.5 * dy * s, y1 - 5 * dy - 3.5 * dx * s) for s in (1, -1)]
    (ax, ay), (bx, by) = ends
    return f"{path}M{ax:.1f} {ay:.1f}L{x1:.1f} {y1:.1f}L{bx:.1f} {by:.1f}"


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)

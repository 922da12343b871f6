"""A site's nodes, before and after, as inline SVG."""

from __future__ import annotations

from rmsnorm_export.printable import plural
from rmsnorm_export.rewrite.drawing import Drawing, DrawnValue, Subgraph
from rmsnorm_export.show.page.layout import LINE, PAD, Box, sound
from rmsnorm_export.show.page.markup import Markup, code, escape, note, scroller, shortened, tag
from rmsnorm_export.show.page.place import Label, Wire, arrange


def drawing(drawn: Drawing, label: str) -> Markup:
    """Both sides of a rewrite, beside each other.

    Args:
        drawn: what to show.
        label: what the reader knows it as, e.g. ``R1``.
    """
    sides = [_side(drawn.before, "before", label)]
    if drawn.after is not None:
        sides.append(_side(drawn.after, "after", label))
    legend = note("Names and shapes are those of ", code(drawn.site, 120), ".")
    return tag(
        "div",
        scroller(f"{label}, graphs", tag("div", *sides, class_="pair")),
        legend,
        class_="drawing",
    )


def _side(graph: Subgraph, when: str, label: str) -> Markup:
    caption = f"{when.capitalize()}: {plural(len(graph.nodes), 'node')}"
    return tag("figure", tag("figcaption", caption), picture(graph, f"{label} {when}"))


def picture(graph: Subgraph, title: str) -> Markup:
    """The graph as an SVG element with a title and the same in words."""
    layout = arrange(graph)
    return tag(
        "svg",
        tag("title", title),
        tag("desc", spoken(graph)),
        *map(_wire, layout.wires),
        *map(_value_label, layout.labels),
        *map(_box, layout.boxes),
        class_="graph",
        role="img",
        width=_round(layout.width),
        height=_round(layout.height),
        viewBox=f"0 0 {_round(layout.width)} {_round(layout.height)}",
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


def _box(box: Box) -> Markup:
    rect = tag(
        "rect",
        x=_round(box.x),
        y=_round(box.y),
        width=_round(box.width),
        height=_round(box.height),
        rx=3 if box.kind == "op" else 11,
    )
    x, y = box.middle
    first = y - LINE * (len(box.lines) - 1) / 2 + 4
    texts = []
    for row, line in enumerate(box.lines):
        text = tag(
            "text",
            line,
            x=_round(x if row or not box.number else x + 7),
            y=_round(first + row * LINE),
            class_="op" if box.kind == "op" and row == 0 else None,
        )
        texts.append(text)
    if box.number:
        number = tag("text", box.number, x=_round(box.x + PAD - 3), y=_round(first), class_="no")
        texts.append(number)
    return tag("g", tag("title", _escaped_lines(box.title)), rect, *texts, class_=box.kind)


def _wire(wire: Wire) -> Markup:
    start, *rest = wire
    path = f"M{_round(start[0])} {_round(start[1])}"
    path += "".join(f"L{_round(x)} {_round(y)}" for x, y in rest)
    (x0, y0), (x1, y1) = wire[-2:]
    path += _arrow(x1, y1, _sign(x1 - x0), _sign(y1 - y0))
    return tag("path", d=path, class_="wire")


def _arrow(x: float, y: float, dx: int, dy: int) -> str:
    """Two strokes at the end of a wire that runs along an axis."""
    ends = [(x - 5 * dx - 3.5 * dy * s, y - 5 * dy - 3.5 * dx * s) for s in (1, -1)]
    (ax, ay), (bx, by) = ends
    return f"M{_round(ax)} {_round(ay)}L{_round(x)} {_round(y)}L{_round(bx)} {_round(by)}"


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _value_label(label: Label) -> Markup:
    spans = [
        tag("text", line, x=_round(label.x), y=_round(label.y + row * 11))
        for row, line in enumerate(label.lines)
    ]
    return tag("g", tag("title", _escaped_lines(label.title)), *spans, class_="value")


def _escaped_lines(text: str) -> Markup:
    """Escaped line by line: the break between name and facts is ours."""
    return Markup("\n".join(escape(line) for line in text.split("\n")))


def _round(value: float) -> str:
    """One decimal, without a zero behind the point."""
    return f"{value:.1f}".removesuffix(".0")

"""A chart of bars as an SVG file: text that is read at the width of a phone, dark on light."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT = 640, 62, 50, 14, 14
_LINE = 26
_INK, _FRAME, _PALE, _OURS, _OTHERS = "#1b1f24", "#d8dee4", "#b8c4d0", "#0a5fb4", "#4b5563"


@dataclasses.dataclass(frozen=True)
class Bar:
    """One row.

    Attributes:
        name: above the bar.
        length: of the bar.
        outline: of a pale bar behind it.
        text: at the right, above the bar.
        ours: drawn in the colour of what is compared with the rest.
    """

    name: str
    length: int
    outline: int
    text: str
    ours: bool


def bars(title: str, below: Sequence[str], rows: Sequence[Bar], whole: int) -> str:
    """Return the SVG; a bar of ``whole`` is as long as the chart is wide."""
    top = _TOP + _LINE * len(below)
    width, height = _WIDTH - _LEFT - _RIGHT, top + _ROW * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="21" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="32" font-size="22" font-weight="600">{escape(title)}</text>',
    ]
    for number, line in enumerate(below):
        y = 60 + _LINE * number
        parts.append(f'<text x="{_LEFT}" y="{y}" font-size="19">{escape(line)}</text>')
    for index, row in enumerate(rows):
        y, colour = top + _ROW * index, _OURS if row.ours else _OTHERS
        weight = ' font-weight="600"' if row.ours else ""
        parts.append(f'<text x="{_LEFT}" y="{y + 26}"{weight}>{escape(row.name)}</text>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{y + 26}" text-anchor="end">{row.text}</text>'
        )
        frame = f'fill="#ffffff" stroke="{_FRAME}"'
        for length, fill in (
            (whole, frame),
            (row.outline, f'fill="{_PALE}"'),
            (row.length, f'fill="{colour}"'),
        ):
            size = f'width="{width * length / whole:.1f}" height="16"'
            parts.append(f'<rect x="{_LEFT}" y="{y + 36}" {size} {fill}/>')
    return "\n".join([*parts, "</svg>", ""])

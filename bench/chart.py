"""A chart of bars as an SVG file: text that is read at the width of a phone, dark on light."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT = 640, 62, 50, 14, 14
_LINE = 26
_INK, _FRAME, _PALE, _OURS, _OTHERS = "#1b1f24", "#d8dee4", "#b8c4d0", "#0a5fb4", "#4b5563"


def bars(
    title: str, below: Sequence[str], rows: Sequence[tuple[str, int, int, str, bool]], whole: int
) -> str:
    """Return the SVG; a bar of ``whole`` is as long as the chart is wide.

    Args:
        title, below: lines above the bars.
        rows: name, length of the bar and of a pale one behind it, a text at the right, and whether
            the bar is ours.
        whole: the largest length.
    """
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
    frame = f'fill="#ffffff" stroke="{_FRAME}"'
    for index, (name, length, outline, text, ours) in enumerate(rows):
        y, fill = top + _ROW * index, f'fill="{_OURS if ours else _OTHERS}"'
        weight = ' font-weight="600"' if ours else ""
        parts.append(f'<text x="{_LEFT}" y="{y + 26}"{weight}>{escape(name)}</text>')
        parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{y + 26}" text-anchor="end">{text}</text>')
        for of, how in ((whole, frame), (outline, f'fill="{_PALE}"'), (length, fill)):
            size = f'width="{width * of / whole:.1f}" height="16"'
            parts.append(f'<rect x="{_LEFT}" y="{y + 36}" {size} {how}/>')
    return "\n".join([*parts, "</svg>", ""])

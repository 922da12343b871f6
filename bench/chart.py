"""The chart of norms as an SVG file: text that is read at the width of a phone, dark on light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _ROW, _TOP, _MARGIN, _LINE = 640, 62, 50, 14, 26
_INK, _FRAME, _PALE, _OURS, _OTHERS = "#1b1f24", "#d8dee4", "#b8c4d0", "#0a5fb4", "#4b5563"


def chart(table: Sequence[Sequence[str]], every: int, versions: Mapping[str, str]) -> str:
    """Return rows of ``bench.norms.HEADINGS`` as bars, the worst first, of so many norms."""
    title = "Norms that ONNX Runtime runs as one kernel"
    below = (
        f"onnxruntime {versions['onnxruntime']} on a CPU; pale: one node in the file",
        f"raw: torch.onnx of {versions['torch'].partition('+')[0]}, opset 18 (TorchScript: 17)",
    )
    top, width = _TOP + _LINE * len(below), _WIDTH - 2 * _MARGIN
    height = top + _ROW * len(table) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="21" fill="{_INK}">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="32" font-size="22" font-weight="600">{title}</text>',
    ]
    for number, line in enumerate(below):
        y = 60 + _LINE * number
        parts.append(f'<text x="{_MARGIN}" y="{y}" font-size="19">{line}</text>')
    rows = [(name, [int(cell.replace(",", "")) for cell in cells]) for name, *cells in table]
    rows.sort(key=lambda row: row[1][0])
    for index, (name, (kernels, in_file, wrong, _)) in enumerate(rows):
        y, is_ours = top + _ROW * index, name.startswith("ours")
        weight = ' font-weight="600"' if is_ours else ""
        text = f"{kernels:,} of {every:,}" + (f", {wrong} wrong" if wrong else "")
        parts.append(f'<text x="{_MARGIN}" y="{y + 26}"{weight}>{name}</text>')
        parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{y + 26}" text-anchor="end">{text}</text>')
        for norms, how in (
            (every, f'fill="#ffffff" stroke="{_FRAME}"'),
            (in_file, f'fill="{_PALE}"'),
            (kernels, f'fill="{_OURS if is_ours else _OTHERS}"'),
        ):
            size = f'width="{width * norms / every:.1f}" height="16"'
            parts.append(f'<rect x="{_MARGIN}" y="{y + 36}" {size} {how}/>')
    return "\n".join([*parts, "</svg>", ""])

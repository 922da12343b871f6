"""What the pages and pictures of all parts of bench.gpu have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tools.lib.results import bullets

# Okabe and Ito's colours, told apart by the colour-blind; markers tell them apart in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#666666")
MARKERS = "os^Dv*P"


def head(data: dict[str, Any]) -> list[str]:
    """How the part ended; when, where and with what."""
    lines = [data["status"] + (f": {data['detail']}" if data["detail"] else "")]
    if "date" in data:
        versions = ", ".join(f"{name} {text}" for name, text in data["versions"].items())
        lines.append(f"{data['date']}, {data['device']}, driver {data['driver']}")
        lines += [data["host"], versions]
    return bullets(lines)


def problem_sections(data: dict[str, Any]) -> list[str]:
    """What failed, what is wrong, and what was left out, each where there is any."""
    lines: list[str] = []
    for title, texts in (
        ("Failed", [f"{failure['what']}: {failure['error']}" for failure in data["failures"]]),
        ("Wrong", data["wrong"]),
        ("Not run", [f"{s['what']}: {s['reason']} ({s['fix']})" for s in data["skipped"]]),
    ):
        if texts:
            lines += ["", f"## {title}", "", *bullets([" ".join(text.split()) for text in texts])]
    return lines


def save_figure(figure: Any, title: str, path: Path, *, columns: int) -> None:
    """Write a figure with one legend of so many columns for all of its panels, and close it."""
    import matplotlib.pyplot as plt

    shown: dict[str, Any] = {}
    for axis in figure.axes:
        shown |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    number = min(columns, len(shown))
    figure.legend([*shown.values()], [*shown], loc="lower center", ncol=number, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout(rect=(0, 0.07, 1, 0.97))
    figure.savefig(path, dpi=130)
    plt.close(figure)

"""The picture of a record: of all norms, what each tool makes one node, misses or gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

SHARES = ("one node", "left in pieces", "in a file with wrong numbers, or that does not load")
_COLOURS = ("#0072B2", "#D0D4D9", "#D55E00")


def shares(exports: Sequence[dict[str, Any]], tool: str, judged: str) -> tuple[int, int, int]:
    """Norms by ``SHARES``, in the exports that ONNX Runtime loads.

    Args:
        exports: rows of the record.
        tool: whose finds are counted.
        judged: whose files are: all those of this package are judged together.
    """
    found = left = wrong = 0
    for row in exports:
        if "session" not in row.get("found", {}):
            continue
        norms = sum(row["norms"].values())
        if row["wrong"].get(judged, False):
            wrong += norms
            continue
        one = min(row["found"].get(tool, (0,))[0], norms)
        found, left = found + one, left + norms - one
    return found, left, wrong


def draw(rows: Sequence[tuple[str, tuple[int, int, int]]], title: str, path: Path) -> None:
    """A bar for every tool, from its name and ``shares``."""
    figure, axis = plt.subplots(figsize=(9.0, 0.5 * len(rows) + 1.6))
    for place, (_, counts) in enumerate(rows):
        start, total = 0, sum(counts)
        for count, colour, name in zip(counts, _COLOURS, SHARES, strict=True):
            axis.barh(place, count, left=start, color=colour, label=name if not place else None)
            if count >= 0.04 * total:
                ink = "#222222" if name == SHARES[1] else "white"
                middle = start + count / 2
                axis.text(middle, place, f"{count:,}", ha="center", va="center", color=ink)
            start += count
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, max(sum(counts) for _, counts in rows))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="lower left", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)

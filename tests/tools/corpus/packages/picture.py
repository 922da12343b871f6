"""The picture of a record: of all norms, what each tool makes one node, misses or gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from tests.tools.corpus.packages.compare import ONE_NODE, OTHERS, OURS

SHARES = ("one node", "left in pieces", "in a file with wrong numbers, or that does not load")
_COLOURS = ("#0072B2", "#D0D4D9", "#D55E00")


_NAMES = {
    **{target: f"ours, {target}" for target in ONE_NODE},
    "session": "ONNX Runtime's session",
    "ort.transformers": "its transformers optimizer",
    "onnxscript": "onnxscript",
}


def loaded(exports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a record whose files ONNX Runtime loads."""
    return [row for row in exports if "session" in row.get("found", {})]


def shares(exports: Sequence[dict[str, Any]], tool: str) -> tuple[int, int, int]:
    """Norms by ``SHARES``, in the exports that are ``loaded``."""
    found = left = wrong = 0
    for row in loaded(exports):
        norms = sum(row["norms"].values())
        if row["wrong"].get(tool if tool in OTHERS else OURS, False):
            wrong += norms
            continue
        one = min(row["found"].get(tool, (0,))[0], norms)
        found, left = found + one, left + norms - one
    return found, left, wrong


def draw(exports: Sequence[dict[str, Any]], path: Path) -> None:
    """A bar for every tool."""
    figure, axis = plt.subplots(figsize=(9.0, 0.5 * len(_NAMES) + 1.6))
    for place, tool in enumerate(_NAMES):
        counts = shares(exports, tool)
        start, total = 0, sum(counts)
        for count, colour, name in zip(counts, _COLOURS, SHARES, strict=True):
            axis.barh(place, count, left=start, color=colour, label=name if not place else None)
            if count >= 0.04 * total:
                ink = "#222222" if name == SHARES[1] else "white"
                middle = start + count / 2
                axis.text(middle, place, f"{count:,}", ha="center", va="center", color=ink)
            start += count
    axis.set_yticks(range(len(_NAMES)), [*_NAMES.values()])
    axis.invert_yaxis()
    axis.set_xlim(0, total)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    of = len({row["package"] for row in loaded(exports)})
    title = f"{total:,} norms in {len(loaded(exports))} exports of {of} packages"
    axis.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="lower left", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)

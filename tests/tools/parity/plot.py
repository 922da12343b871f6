"""The picture: how far every side is from PyTorch eager, per variant and type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tests.tools.parity.measure import BUCKETS, EAGER, OURS, Cell, total
from tests.tools.parity.variants import VARIANTS

# Okabe and Ito's colours: told apart with every kind of colour vision, and in grey.
SIDES = {
    OURS: ("our operator in PyTorch", "#0072B2"),
    "portable": ("ONNX Runtime, target portable", "#E69F00"),
    "onnx": ("ONNX Runtime, target onnx", "#009E73"),
    "ort": ("ONNX Runtime, target ort", "#CC79A7"),
}
TYPES = ("float16", "bfloat16", "float32", "float64")
_FLOOR = 1e-7  # of a share; the smallest that can occur is one element in half a million


def draw(cells: Sequence[Cell], report: dict[str, Any], path: Path) -> None:
    """Small multiples: a row per variant, a column per type; shares of elements, logarithmic.

    Args:
        cells: those of the module level are drawn.
        report: date and versions for the caption.
        path: PNG to write.
    """
    drawn = [c for c in cells if c.level == "module" and c.judged is not None]
    types = [name for name in TYPES if any(c.dtype == name for c in drawn)]
    variants = [v for v in VARIANTS if any(c.subject == v.name for c in drawn)]
    figure, axes = plt.subplots(
        len(variants),
        len(types),
        figsize=(max(3.5 * len(types) + 1.2, 11.0), 1.38 * len(variants) + 2.8),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for row, variant in enumerate(variants):
        for column, dtype in enumerate(types):
            found = [c for c in drawn if c.subject == variant.name and c.dtype == dtype]
            _panel(axes[row][column], found)
            if row == 0:
                axes[row][column].set_title(dtype, fontsize=12, fontweight="bold", pad=17)
        axes[row][0].set_ylabel(f"{variant.name}\n", fontsize=10, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("ulp from PyTorch eager", fontsize=9)
    _words(figure, report, sum(c.elements for c in drawn))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Axes, cells: Sequence[Cell]) -> None:
    if not cells:
        axis.text(0.5, 0.5, "not a variant\nof its own", transform=axis.transAxes, **_CENTRE)
    width = 0.8 / len(SIDES)
    absent = []
    for number, (side, (_, colour)) in enumerate(SIDES.items()):
        histograms = [c.pairs[EAGER, side].histogram for c in cells if (EAGER, side) in c.pairs]
        if not histograms:
            absent.append(side)
            continue
        counts = total(histograms)
        shares = [count / sum(counts) for count in counts]
        places = [k + (number - 1.5) * width for k in range(len(BUCKETS))]
        axis.bar(places, shares, width, color=colour, bottom=0, log=True)
    if cells:
        worst = [max(c.errors[side].max for c in cells) for side in (EAGER, OURS)]
        text = "largest error against float64: eager {}, ours {} ulp".format(*map(_short, worst))
        axis.text(0.99, 1.0, text, transform=axis.transAxes, **_CORNER)
    if cells and absent:
        text = "no CPU kernel in\nONNX Runtime:\n" + ", ".join(absent)
        axis.text(
            0.98,
            0.93,
            text,
            transform=axis.transAxes,
            ha="right",
            va="top",
            fontsize=7.5,
            color="0.3",
        )
    axis.set_ylim(_FLOOR, 2)
    axis.set_yticks([1e-6, 1e-3, 1], ["1 in 1e6", "0.1 %", "100 %"], fontsize=7.5)
    axis.set_xticks(range(len(BUCKETS)), BUCKETS, fontsize=7.5)
    axis.axvspan(-0.5, 0.5, color="0.93", zorder=0)
    axis.grid(axis="y", color="0.85", linewidth=0.6)
    axis.set_axisbelow(True)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


def _short(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


_CORNER: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 7.5, "color": "0.25"}
_CENTRE: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": "0.4"}


def _words(figure: Any, report: dict[str, Any], elements: int) -> None:
    height = figure.get_figheight()
    figure.subplots_adjust(
        left=0.1, right=0.985, top=1 - 2.15 / height, bottom=0.85 / height, wspace=0.07, hspace=0.36
    )
    versions = report["versions"]
    figure.suptitle(
        "RMSNorm: how far each implementation is from PyTorch eager",
        x=0.01, y=1 - 0.12 / height, ha="left", va="top", fontsize=16, fontweight="bold",
    )  # fmt: skip
    figure.text(
        0.01,
        1 - 0.52 / height,
        "Each bar: the share of elements (logarithmic) that are so many units in the last place "
        "(ulp) from PyTorch code as its authors wrote it.\n"
        "Grey column: bit for bit the same. Rows of 1 to 8192 elements; ordinary, tiny, denormal, "
        "large, mixed, zero, NaN and infinite rows.\n"
        "Where bars reach far to the right in a half type, eager computes the row in that type: "
        "compare the errors above the panel.",
        ha="left", va="top", fontsize=9.5,
    )  # fmt: skip
    handles = [Patch(color=colour, label=label) for label, colour in SIDES.values()]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1 - 1.1 / height),
        ncols=len(handles), frameon=False, fontsize=10,
    )  # fmt: skip
    figure.text(
        0.01,
        0.12 / height,
        f"{elements:,} elements. {report['date']}, {report['machine']['cpu']}, PyTorch "
        f"{versions.get('torch', '')}, ONNX Runtime {versions.get('onnxruntime', '')} on the CPU, "
        "graph optimization off. Made by tests/tools/parity/run; the numbers are in parity.json.",
        ha="left", va="bottom", fontsize=8, color="0.3",
    )  # fmt: skip

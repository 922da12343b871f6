"""A benchmark as a PNG: every variant's interval, grouped by provider and shape."""

from __future__ import annotations

import io
import textwrap
from typing import Any

from rmsnorm_export.benchmark.result import Benchmark, Timing, headlines
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.system.packages import pip_install

# Okabe and Ito's blue and vermilion, told apart with every kind of colour vision; the marks differ
# in form as well.
_MARKS = {
    "faster": ("#0072B2", "o", "full", "faster"),
    "slower": ("#D55E00", "s", "full", "slower"),
    "no difference beyond noise": ("#444444", "o", "none", "no difference beyond noise"),
    "noise floor": ("#777777", "D", "none", "raw again: the noise"),
}
_ROW = 0.27
"""Inches per row."""


def check_matplotlib() -> None:
    """Raise ``BackendMissingError`` where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise BackendMissingError(
            "A PNG needs matplotlib, which cannot be imported.",
            found=str(error),
            fix=pip_install("[report]"),
        ) from error


def to_png(result: Benchmark) -> bytes:
    """The plot.

    Raises:
        BackendMissingError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [
        (f"{provider}, {case.label}: raw {timings[0].median_ms:.3g} ms", timings[1:])
        for provider in result.providers
        for case in result.cases
        if (timings := result.timed(provider, case.label))
    ]
    rows = sum(1.6 + len(timings) for _, timings in groups)
    height = _ROW * rows + 1.7
    figure = Figure(figsize=(8.4, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    place, labels = 0.0, []
    for title, timings in groups:
        place += 1.1
        _draw_group(axes, title, timings, place)
        for timing in timings:
            labels.append((place, timing.variant))
            place += 1
        place += 0.5
    _finish_axes(axes, labels, place, result)
    output = io.BytesIO()
    figure.savefig(output, format="png", metadata={"Software": "rmsnorm-export"})
    return output.getvalue()


def _draw_group(axes: Any, title: str, timings: tuple[Timing, ...], top: float) -> None:
    floor, bottom = timings[0].floor, top + len(timings) - 0.5
    axes.fill_between(
        [1 - floor, 1 + floor], top - 0.5, bottom, color="#000000", alpha=0.08, linewidth=0
    )
    axes.plot([1, 1], [top - 0.5, bottom], color="#000000", linewidth=0.9, linestyle=(0, (4, 2)))
    axes.text(
        0, top - 0.62, short(one_line(title), 96), transform=axes.get_yaxis_transform(),
        fontsize=8.5, fontweight="bold", va="bottom", parse_math=False,
    )  # fmt: skip
    for i, timing in enumerate(timings):
        colour, mark, fill, _ = _MARKS[timing.verdict]
        axes.errorbar(
            [timing.ratio], [top + i], fmt=mark, fillstyle=fill, color=colour, markersize=6,
            xerr=[[timing.ratio - timing.low], [timing.high - timing.ratio]],
            capsize=3, elinewidth=1.5, markeredgewidth=1.5,
        )  # fmt: skip
        axes.text(
            1.01, top + i, f"{timing.ratio:.3f}", transform=axes.get_yaxis_transform(),
            fontsize=8, va="center", color=colour,
        )  # fmt: skip


def _finish_axes(
    axes: Any, labels: list[tuple[float, str]], bottom: float, result: Benchmark
) -> None:
    from matplotlib.lines import Line2D

    axes.set_ylim(max(bottom, 1), 0)
    axes.set_yticks([y for y, _ in labels], [name for _, name in labels], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "time / raw's time in the same round: median and 95 % interval; left of 1 is faster",
        fontsize=8.5,
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    headline = "\n".join(
        textwrap.fill(short(one_line(line), 400), 92) for line in headlines(result)
    )
    machine = result.machine
    version = result.versions.get("onnxruntime") or result.versions.get("onnxruntime-gpu", "")
    below = f"{machine.cpu}, {result.threads}, ONNX Runtime {version}; grey band: noise"
    axes.set_title(f"{headline}\n", fontsize=9.5, fontweight="bold", loc="left", parse_math=False)
    axes.text(
        0, 1.005, below, transform=axes.transAxes, fontsize=8, color="#555555", va="bottom",
        parse_math=False,
    )  # fmt: skip
    used = {t.verdict for t in result.timings}
    axes.text(1.01, 1.005, "time / raw", transform=axes.transAxes, fontsize=8, va="bottom")
    handles = [
        Line2D([], [], color=c, marker=m, fillstyle=f, linestyle="none", label=text, markersize=6)  # type: ignore[arg-type,unused-ignore]
        for verdict, (c, m, f, text) in _MARKS.items()
        if verdict in used
    ]
    axes.figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles) or 1, fontsize=8,
        frameon=False,
    )  # fmt: skip

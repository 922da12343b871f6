"""The GPU benchmark's rows as verdicts, tables and a roofline picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.gpu.page import COLOURS, MARKERS, head, problem_sections, save_figure
from tests.tools.lib.results import bullets
from tests.tools.lib.tables import markdown_table

OURS, LOW_LATENCY = "ours", "ours, low latency"
_HALF = ("bfloat16", "float16")
_OPS = {
    "norm": "RMSNorm",
    "skip": "SkipRMSNorm",
    "fp8": "RMSNorm to FP8",
    "rotary": "RotaryRMSNorm",
}
Rows = list[dict[str, Any]]


def _timed(rows: Iterable[dict[str, Any]], cache: str) -> Rows:
    return [row for row in rows if row["cache"] == cache and row["timing"] is not None]


def _by_work(rows: Rows) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """(op, dtype, rows, n) -> contender -> row."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        work = row["work"]
        key = (work["op"], work["dtype"], work["rows"], work["n"])
        found.setdefault(key, {})[row["contender"]] = row
    return found


def verdicts(report: dict[str, Any]) -> list[str]:
    """The goals for an H200, each with what was measured. They decide nothing: speed is no test."""
    rows, copy = report["rows"], report["copy_bytes_per_second"]
    cold = _timed(rows, "cold")
    lines = []

    def share(op: str, lengths: Callable[[int], bool], goal: float, name: str) -> None:
        shares = [
            (row["bytes_per_second"] / copy, row["work"]["n"], row["work"]["dtype"])
            for row in cold
            if row["contender"] == OURS
            and row["work"]["op"] == op
            and row["work"]["dtype"] in _HALF
            and row["work"]["rows"] > 32
            and lengths(row["work"]["n"])
        ]
        if shares:
            worst = min(shares)
            lines.append(
                f"{_OPS[op]}, {name}: least {worst[0]:.1%} of the copy rate (n = {worst[1]}, "
                f"{worst[2]}), median {statistics.median(s for s, *_ in shares):.1%}; "
                f"goal {goal:.0%}: {'met' if worst[0] >= goal else 'MISSED'}"
            )

    for op in _OPS:
        share(op, lambda n: 64 <= n <= 256, 0.85, "n 64 to 256")
        share(op, lambda n: 1024 <= n <= 65536, 0.92, "n 1K to 64K")
        share(op, lambda n: n > 65536, 0.85, "n 128K and 256K")
    decode = [
        (row["timing"]["median"], row)
        for row in _timed(rows, "warm")
        if row["contender"] == LOW_LATENCY
    ]
    if decode:
        slowest, row = max(decode, key=lambda pair: pair[0])
        lines.append(
            f"1 to 32 rows, n to 16K, in a graph: slowest {slowest * 1e6:.2f} us "
            f"({row['work']['op']}, {row['work']['rows']} x {row['work']['n']}); "
            f"goal 2 us: {'met' if slowest < 2e-6 else 'MISSED'}"
        )
    for peer in ("torch fused", "torch.compile", "Liger", "quack", "flashinfer", "unfused"):
        lost, met = [], 0
        for (op, dtype, count, n), by_name in _by_work(cold).items():
            mine, theirs = by_name.get(OURS), by_name.get(peer)
            if mine is None or theirs is None:
                continue
            met += 1
            ratio = theirs["timing"]["median"] / mine["timing"]["median"]
            if ratio < 1:
                lost.append((ratio, f"{op} {count} x {n} {dtype}"))
        if met:
            worst = f"; worst {min(lost)[0]:.2f} of our time at {min(lost)[1]}" if lost else ""
            lines.append(f"against {peer}, L2 cold: ahead on {met - len(lost)} of {met}{worst}")
    return lines


def headlines(report: dict[str, Any]) -> list[str]:
    """What a run has to say in the end."""
    return [*report.get("correctness", []), *(verdicts(report) if "rows" in report else [])]


def _table(rows: Rows, cache: str, copy: float) -> list[str]:
    """One line a work: time and rate of ours, and the time of the others over it."""
    others = [name for name in dict.fromkeys(row["contender"] for row in rows) if name != OURS]
    lines = []
    for (op, dtype, count, n), by_name in _by_work(_timed(rows, cache)).items():
        if OURS not in by_name:
            continue
        took, rate = by_name[OURS]["timing"], by_name[OURS]["bytes_per_second"]
        spread = f"{took['low'] * 1e6:.2f}-{took['high'] * 1e6:.2f}"
        cells = [op, dtype, f"{count:,}", f"{n:,}", f"{took['median'] * 1e6:.2f} ({spread})"]
        cells += [f"{rate / 1e9:,.0f}", f"{rate / copy:.1%}"]
        for name in others:
            theirs = by_name.get(name)
            cells.append(f"{theirs['timing']['median'] / took['median']:.2f}" if theirs else "-")
        lines.append(cells)
    headings = ["rows", "n", "ours, us", "GB/s", "of copy", *others]
    return markdown_table(["op", "type", *(f"{name}:" for name in headings)], lines)


def markdown(report: dict[str, Any]) -> str:
    """The whole report as a page."""
    lines = ["# The kernels on a GPU", "", *head(report), *problem_sections(report)]
    if "kernels" not in report:
        return "\n".join(lines) + "\n"
    copy = report["copy_bytes_per_second"]
    rate = f"{copy / 1e9:,.0f} GB/s, bytes read and written" if copy else "not measured"
    found = [f"kernels: {report['kernels']}", *(report["correctness"] or ["not run"])]
    lines += ["", "## Correctness", "", *bullets(found)]
    goals = [f"device-to-device copy: {rate}", *verdicts(report)]
    lines += ["", "## Goals", "", *bullets(goals)]
    notes = {
        "cold": "L2 cold. Median of interleaved replays (quartiles); each input counted as read "
        "once, each output as written once. Other columns: their time over ours.",
        "warm": "L2 warm, few rows, in a CUDA graph. Columns as above.",
    }
    for cache, note in notes.items():
        if _timed(report["rows"], cache):
            lines += ["", f"## {note.partition('.')[0]}", "", note, ""]
            lines += _table(report["rows"], cache, copy)
    absent = dict.fromkeys(
        f"{row['contender']}: {row['remark']}"
        for row in report["rows"]
        if row["timing"] is None and row["remark"]
    )
    if absent:
        lines += ["", "## Not timed", "", *bullets([*absent])]
    return "\n".join(lines) + "\n"


def picture(report: dict[str, Any], path: Path) -> None:
    """Rate over the length of a row, a panel for each operation and type, the copy rate on top."""
    import matplotlib.pyplot as plt

    rows = [row for row in _timed(report.get("rows", []), "cold") if row["work"]["rows"] > 32]
    panels = list(dict.fromkeys((row["work"]["op"], row["work"]["dtype"]) for row in rows))
    if not panels:
        return
    copy = report["copy_bytes_per_second"] / 1e9
    columns = min(3, len(panels))
    height = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        height, columns, figsize=(5 * columns, 3.8 * height), squeeze=False, sharey=True
    )
    names = [OURS, *(n for n in dict.fromkeys(row["contender"] for row in rows) if n != OURS)]
    for index, (op, dtype) in enumerate(panels):
        axis = axes[index // columns][index % columns]
        axis.axhline(copy, color="black", linewidth=1, linestyle="--")
        axis.text(64, copy * 1.01, f"copy {copy:,.0f} GB/s", fontsize=8, va="bottom")
        for number, name in enumerate(names):
            points = sorted(
                (row["work"]["n"], row["bytes_per_second"] / 1e9)
                for row in rows
                if (row["work"]["op"], row["work"]["dtype"]) == (op, dtype)
                and row["contender"] == name
            )
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=4,
                    linewidth=2 if name == OURS else 1,
                    color=COLOURS[number % len(COLOURS)],
                    label=name,
                )
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, copy * 1.12)
        axis.set_title(f"{_OPS[op]}, {dtype}", fontsize=10)
        axis.set_xlabel("elements of a row")
        if index % columns == 0:
            axis.set_ylabel("GB/s, read and written")
        axis.grid(alpha=0.3)
    for index in range(len(panels), height * columns):
        axes[index // columns][index % columns].set_axis_off()
    title = f"RMSNorm on {report['device']}: memory rate, L2 cold ({report['date']})"
    save_figure(figure, title, path, columns=7)

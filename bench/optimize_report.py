"""Medians, ratios and the growth exponent of scripts/bench_optimize, and their tables."""

from __future__ import annotations

import math
import statistics
from typing import Any

from tests.tools.lib.results import about, bullets
from tests.tools.lib.tables import markdown_table, print_table

OURS = "ours portable"
FLOOR = "onnx_ir load + save"

_TIMES = {
    "seconds": "load + optimize + save",
    "cpu_seconds": "load + optimize + save, processor time",
    "optimize_seconds": "the call of optimize, loading included",
}
"""Times of a run; processor time shows the growth on a machine that is busy with other things."""


def median_and_range(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest of at least one value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def growth(points: list[tuple[float, float]]) -> float:
    """Exponent k of ``seconds = c * nodes ** k``: the least-squares slope in log-log.

    Args:
        points: (nodes, seconds), at least two different sizes.
    """
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - mean_x) ** 2 for x in xs)


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per graph and tool, with ratios to ours; the first failure of a tool is its row."""
    keys = dict.fromkeys((run["graph"], run["tool"]) for run in runs)
    rows = []
    for graph, tool in keys:
        mine = [run for run in runs if (run["graph"], run["tool"]) == (graph, tool)]
        bad = next((run for run in mine if run["status"] != "ok"), None)
        first = mine[0]
        row = {name: first[name] for name in ("graph", "tool", "nodes", "norms")}
        row["status"] = bad["status"] if bad else "ok"
        row["detail"] = bad["detail"] if bad else ""
        row["repeats"] = len(mine)
        row["process_seconds"] = median_and_range([run["process_seconds"] for run in mine])
        row["peak_mb"] = median_and_range([run["peak_mb"] for run in mine])
        if not bad:
            row["fused"] = first["fused"]
            for name in _TIMES:
                if name in first:
                    row[name] = median_and_range([run[name] for run in mine])
        rows.append(row)
    ours = {row["graph"]: row for row in rows if row["tool"] == OURS and row["status"] == "ok"}
    for row in rows:
        base = ours.get(row["graph"])
        if base and row["status"] == "ok":
            for name in ("seconds", "process_seconds", "peak_mb"):
                row[f"{name}_ratio"] = row[name]["median"] / base[name]["median"]
    return rows


def fit(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Growth of ours and of the floor over the decoders, by time; {} with fewer than two sizes."""
    result: dict[str, Any] = {}
    for tool in (OURS, FLOOR):
        mine = [row for row in rows if row["tool"] == tool and row["graph"].startswith("decoder")]
        mine = [row for row in mine if row["status"] == "ok"]
        if len(mine) < 2:
            continue
        result[tool] = {
            name: {
                "exponent": growth([(row["nodes"], row[name]["median"]) for row in mine]),
                "microseconds_per_node": {
                    str(row["nodes"]): row[name]["median"] / row["nodes"] * 1e6 for row in mine
                },
            }
            for name in _TIMES
            if all(name in row for row in mine)
        }
    return result


def doubling(rows: list[dict[str, Any]], families: list[str]) -> list[dict[str, Any]]:
    """What twice the size takes, for each family of graphs and tool that were run with two."""
    found = []
    for family in families:
        mine = [row for row in rows if row["graph"].startswith(family) and row["status"] == "ok"]
        for tool in dict.fromkeys(row["tool"] for row in mine):
            pair = sorted((r for r in mine if r["tool"] == tool), key=lambda row: row["nodes"])
            if len(pair) == 2:
                once, twice = (row["cpu_seconds"]["median"] for row in pair)
                found.append(
                    {
                        "graphs": family,
                        "tool": tool,
                        "nodes": [row["nodes"] for row in pair],
                        "cpu_seconds": [once, twice],
                        "ratio": twice / once,
                    }
                )
    return found


def _range_text(value: dict[str, float], digits: int) -> str:
    low, high = f"{value['min']:.{digits}f}", f"{value['max']:.{digits}f}"
    return f"{value['median']:.{digits}f} ({low}-{high})"


_TOOL_HEADINGS = (
    *("graph", "tool", "norms fused", "seconds:", "ratio:"),
    *("process, s:", "ratio:", "peak MiB:", "ratio:"),
)
_TITLE = (
    "Load + optimize + save, and the whole process with its imports: median (smallest-largest). "
    f"Ratios are to {OURS}."
)


def _tool_cells(row: dict[str, Any]) -> list[str]:
    process, peak = _range_text(row["process_seconds"], 2), f"{row['peak_mb']['median']:,.0f}"
    if row["status"] == "ok":
        fused, seconds = f"{row['fused']:,} of {row['norms']:,}", _range_text(row["seconds"], 3)
        ratios = [
            f"{row[f'{name}_ratio']:.2f}" if f"{name}_ratio" in row else "-"
            for name in ("seconds", "process_seconds", "peak_mb")
        ]
    else:
        fused, seconds, ratios = row["status"], "-", ["-", "-", "-"]
    return [
        row["graph"], row["tool"], fused,
        seconds, ratios[0], process, ratios[1], peak, ratios[2],
    ]  # fmt: skip


def _tail(report: dict[str, Any]) -> list[str]:
    """Why tools failed, growth with the size of the graph, and the time of --help."""
    lines = [
        f"{row['graph']}, {row['tool']}: {row['status']}, {row['detail']}"
        for row in report["summary"]
        if row["detail"]
    ]
    for tool, times in report["growth"].items():
        for name, found in times.items():
            each = ", ".join(
                f"{value:.1f} at {int(nodes):,}"
                for nodes, value in found["microseconds_per_node"].items()
            )
            lines.append(
                f"growth of {tool}, {_TIMES[name]}: nodes^{found['exponent']:.3f}; "
                f"microseconds per node: {each}"
            )
    for row in report.get("doubling", ()):  # older results have none
        small, large = (f"{nodes:,}" for nodes in row["nodes"])
        lines.append(
            f"{row['graphs']}, {row['tool']}: from {small} to {large} nodes the processor time is "
            f"{row['ratio']:.2f} times that"
        )
    if report["help"]:
        seconds = _range_text({k: v * 1000 for k, v in report["help"]["seconds"].items()}, 0)
        lines.append(f"rmsnorm-export --help: {seconds} ms, {report['help']['repeats']} runs")
    return lines


def show(report: dict[str, Any]) -> None:
    """Print the report as a table on stdout."""
    rows = map(_tool_cells, report["summary"])
    print_table(_TOOL_HEADINGS, rows, above=[*about(report), "", _TITLE], below=_tail(report))


def markdown(report: dict[str, Any]) -> str:
    """The same report as a Markdown page."""
    table = markdown_table(_TOOL_HEADINGS, map(_tool_cells, report["summary"]))
    lines = ["# Optimize beside its peers", "", *bullets(about(report)), "", _TITLE, "", *table]
    return "\n".join([*lines, "", *bullets(_tail(report)), ""])

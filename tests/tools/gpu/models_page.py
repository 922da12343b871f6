"""The parts ``models`` and ``engines`` of tests/tools/gpu_check as a page and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import AGAIN, RAW
from tests.tools.gpu.page import COLOURS, MARKERS, head, problem_sections, save_figure
from tests.tools.lib.tables import markdown_table

_TITLES = {
    "models": "Whole models in ONNX Runtime: raw against every target",
    "engines": "The same models as TensorRT engines",
}
_KIND_TITLES = {
    "decode": "Decode: one token, its past in and out (batch x past)",
    "prefill": "Prefill: a prompt, logits of its last position (batch x length)",
}


def markdown(data: dict[str, Any]) -> str:
    """The results of one part as a page."""
    lines = [f"# {_TITLES[data['part']]}", "", *head(data)]
    if "decoder" in data:
        sizes = ", ".join(f"{name} {value}" for name, value in data["decoder"].items())
        lines.append(f"- a LLaMA with random weights: {sizes}")
    lines += _engines(data.get("engines", []))
    for kind, title in _KIND_TITLES.items():
        rows = [row for row in data.get("rows", []) if row["kind"] == kind]
        for provider in dict.fromkeys(row["provider"] for row in rows):
            mine = [row for row in rows if row["provider"] == provider]
            note = f"Ratios are to {data['baseline']}: below 1 is faster."
            lines += ["", f"## {title}, {provider}", "", note, ""]
            lines += markdown_table(_SHAPE_HEADINGS, map(_shape_cells, mine))
    return "\n".join([*lines, *problem_sections(data)]) + "\n"


def headlines(data: dict[str, Any]) -> list[str]:
    """A line for every shape and every variant that differs from the baseline."""
    lines = []
    for row in data.get("rows", []):
        timing = row.get("timing")
        if timing and timing["verdict"] in ("faster", "slower"):
            lines.append(
                f"{row['kind']} {row['batch']} x {row['length']}, {row['variant']}: "
                f"{timing['verdict']}, {timing['ratio']:.3f} "
                f"({timing['low']:.3f}-{timing['high']:.3f}), {timing['median_ms']:.2f} ms"
            )
    if lines or not any("timing" in row for row in data.get("rows", [])):
        return lines
    return ["no difference beyond noise"]


def _engines(engines: list[dict[str, Any]]) -> list[str]:
    """What was built, and what became of the norms."""
    if not engines:
        return []
    rows = []
    for row in engines:
        cells = [row["kind"], row["name"], row["status"]]
        if row["status"] == "built":
            how = ", ".join(f"{count} {name}" for name, count in row["how"].items())
            cells += [str(row["seconds"]), f"{row['bytes'] / 2**20:,.0f}", str(row["layers"])]
            cells.append(how or "none")
        else:
            cells += ["-", "-", "-", " ".join(row["error"].split())[:200]]
        rows.append(cells)
    headings = ("kind", "engine", "status", "build, s:", "MiB:", "layers:", "norms")
    return ["", "## Engines", "", *markdown_table(headings, rows)]


_SHAPE_HEADINGS = ("shape", "variant", "ms:", "on the device, ms:", "ratio:", "verdict")
_SHAPE_HEADINGS += ("largest difference",)


def _shape_cells(row: dict[str, Any]) -> list[str]:
    timing = row.get("timing")
    time = ratio = verdict = "-"
    if timing:
        time = f"{timing['median_ms']:.3f} ({timing['q1_ms']:.3f}-{timing['q3_ms']:.3f})"
        ratio = f"{timing['ratio']:.3f} ({timing['low']:.3f}-{timing['high']:.3f})"
        verdict = timing["verdict"]
    device = f"{row['device_ms']:.3f}" if "device_ms" in row else "-"
    check = row["detail"] or row["status"]
    if "max_abs" in row:
        check = f"{row['max_abs']:.2g} of {row['allowed']:.2g} ({row['output']})"
        check = f"{row['status']}: {check}" if row["status"] != "ok" else check
    shape = f"{row['batch']} x {row['length']}"
    return [shape, row["variant"], time, device, ratio, verdict, check]


def picture(data: dict[str, Any], path: Path) -> None:
    """Ratios with their intervals, a panel for each kind; the grey band is noise."""
    import matplotlib.pyplot as plt

    timed = [row for row in data.get("rows", []) if "timing" in row]
    panels = [kind for kind in _KIND_TITLES if any(row["kind"] == kind for row in timed)]
    if not panels:
        return
    names = list(dict.fromkeys(row["variant"] for row in timed))
    names = [name for name in names if name not in (RAW, AGAIN)]
    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.5), squeeze=False)
    for axis, kind in zip(axes[0], panels, strict=True):
        rows = [row for row in timed if row["kind"] == kind]
        labels = list(dict.fromkeys(f"{row['batch']} x {row['length']}" for row in rows))
        for row in rows:
            at = labels.index(f"{row['batch']} x {row['length']}")
            timing = row["timing"]
            if row["variant"] == AGAIN:
                low, high = 1 - timing["floor"], 1 + timing["floor"]
                axis.fill_between([at - 0.45, at + 0.45], low, high, color="0.88", zorder=0)
            elif row["variant"] != RAW:
                number = names.index(row["variant"])
                x = at + 0.7 * ((number + 0.5) / len(names) - 0.5)
                reach = [[timing["ratio"] - timing["low"]], [timing["high"] - timing["ratio"]]]
                axis.errorbar(
                    x,
                    timing["ratio"],
                    yerr=reach,
                    marker=MARKERS[number % len(MARKERS)],
                    color=COLOURS[number % len(COLOURS)],
                    label=row["variant"],
                    capsize=3,
                    linestyle="none",
                )
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(labels)), labels)
        axis.set_title(_KIND_TITLES[kind], fontsize=9)
        axis.set_ylabel("time over the baseline's")
        axis.grid(axis="y", alpha=0.3)
    title = f"{_TITLES[data['part']]}, {data['device']} ({data['date']})"
    save_figure(figure, title, path, columns=4)

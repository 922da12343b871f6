"""Time by stage and peak memory of an export from PyTorch, beside torch.onnx.export on its own.

- ``7b``: the shape of Llama-2-7B in float16, 12.6 GiB of weights that are made one by one when they
  are written (``state=``). torch.onnx.export has no such thing: it is not run on it, for it would
  need all weights in memory.
- ``1b``: a LLaMA with 1 GiB of float16 weights in memory, saved by ours with ``weights="auto"`` and
  ``"embed"`` (below 2 GiB both make one file), and by ``torch.onnx.export(dynamo=True)`` with its
  weights in a data file (its default) and inside the model.
- ``3b``: 6.5 GiB, for ``ours cast`` alone, which loads a folder of bfloat16 in shards and exports
  it in float16, for which every weight is checked. It is loaded without the check, too, each time
  from the disk, and what was read and written is hashed as for a report. It takes the other models,
  too.

Every run is a process of its own with one thread; the repeats of the tools are interleaved, and
each number is a median with its smallest and largest value. Peak memory is what a process has in
memory at most while it exports, less what it has after its imports, over the size of the weights:
with weights in memory 1.0 is the module itself. The output goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rmsnorm_export.system.machine import memory_available
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.process import run_step
from tests.tools.lib.results import Start, about, bullets, write_results
from tests.tools.lib.tables import markdown_table

PACKAGES = ("rmsnorm-export", "torch", "transformers", "onnx", "onnx-ir", "onnxscript")
TOOLS = {
    "7b": ["ours auto", "ours cast"],
    "3b": ["ours cast"],
    "1b": ["ours auto", "torch data", "ours embed", "torch embed", "ours cast"],
    "tiny": ["ours auto", "torch data", "ours embed", "torch embed", "ours cast"],
}
BASELINE = {"ours auto": "torch data", "ours embed": "torch embed"}
WEIGHTS = {"7b": 13 << 30, "3b": 13 << 29, "1b": 1 << 30, "tiny": 1 << 25}
"""Bytes; a run needs twice as many on the disk, and a cast once as many in memory."""

Record = dict[str, Any]


def _arguments() -> argparse.Namespace:
    options = parser("bench.export", __doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=list(TOOLS), default=["7b", "1b"])
    add(
        "--tools", nargs="+", choices=TOOLS["1b"],
        help="default: all but ours cast of 7b, which needs 14 GiB of memory",
    )  # fmt: skip
    add("--repeats", type=int, default=3, help="runs of each tool")
    add("--time-limit", type=float, default=1800, help="time limit of a run, seconds")
    add("--folder", type=Path, help="where to write; default the system's temporary folder")
    add("--quick", action="store_true", help="a smoke run on a tiny model")
    add_output(options, "bench_export.json")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.models, arguments.repeats = ["tiny"], 1
    if arguments.repeats < 1:
        options.error("--repeats takes numbers from 1")
    return arguments


def _run_export(tool: str, model: str, folder: Path, time_limit: float) -> Record:
    """One export; what it wrote is deleted again."""
    out = folder / "out"
    out.mkdir()
    step = [tool, model, str(out / "m.onnx"), "RESULT"]
    done = run_step("bench.export_step", step, folder=folder, time_limit=time_limit)
    shutil.rmtree(out)
    run = {"tool": tool, "model": model, "status": done.status}
    if done.status != "ok":
        return run | {"detail": done.detail}
    measured = done.result
    more = (measured["peak_stage_mb"] - measured["imported_mb"]) / measured["weights_mb"]
    return run | {"process_seconds": done.wall, "peak_over_weights": more} | measured


def _usual(model: str) -> list[str]:
    return [tool for tool in TOOLS[model] if (model, tool) != ("7b", "ours cast")]


def _refuse_lack(model: str, what: str, need: int, free: int, where: str) -> None:
    if free < need:
        raise SystemExit(
            f"error: {model} needs {need >> 20} MiB of {what}\nfound: {free >> 20} MiB {where}"
        )


def _measure_exports(arguments: argparse.Namespace) -> list[Record]:
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench_export_", dir=arguments.folder) as name:
        for model in arguments.models:
            tools = [t for t in TOOLS[model] if t in (arguments.tools or _usual(model))]
            need, where = 2 * WEIGHTS[model], f"free in {name}\nfix: give another --folder"
            _refuse_lack(model, "disk", need, shutil.disk_usage(name).free, where)
            if "ours cast" in tools:
                need, where = WEIGHTS[model] * 17 // 16, "free\nfix: take a smaller model"
                _refuse_lack(model, "memory", need, memory_available() or need, where)
            for _ in range(arguments.repeats):
                for tool in tools:
                    run = _run_export(tool, model, Path(name), arguments.time_limit)
                    runs.append(run)
                    seconds = f"{run['seconds']:.1f} s" if run["status"] == "ok" else run["detail"]
                    say(f"{model}, {tool}: {run['status']}, {seconds}")
    return runs


def _spread(values: list[float]) -> list[float]:
    """Median, smallest, largest."""
    return [statistics.median(values), min(values), max(values)]


def _summarise(runs: list[Record]) -> list[Record]:
    rows: list[Record] = []
    for model, tool in dict.fromkeys((run["model"], run["tool"]) for run in runs):
        some = [run for run in runs if (run["model"], run["tool"]) == (model, tool)]
        good = [run for run in some if run["status"] == "ok"]
        row: Record = {"model": model, "tool": tool, "status": "ok"}
        rows.append(row)
        if len(good) < len(some):
            failed = next(run for run in some if run["status"] != "ok")
            row |= {"status": failed["status"], "detail": failed["detail"]}
            continue
        for key in ("seconds", "peak_over_weights", "imported_mb", "peak_stage_mb"):
            row[key] = _spread([run[key] for run in good])
        for key in ("weights_mb", "largest_mb", "parameters", "written_mb", "norms", "refused"):
            row[key] = good[0].get(key)
        if "beside" in good[0]:
            row["beside"] = {
                what: [_spread([run["beside"][what][i] for run in good]) for i in range(2)]
                for what in good[0]["beside"]
            }
        row["stages"] = [
            {
                "stage": stage["stage"],
                "seconds": _spread([run["stages"][i]["seconds"] for run in good]),
                "peak_mb": _spread([run["stages"][i]["peak_mb"] for run in good]),
            }
            for i, stage in enumerate(good[0]["stages"])
        ]
    return rows


def _spread_text(spread: list[float], digits: int) -> str:
    middle, low, high = (f"{value:,.{digits}f}" for value in spread)
    return f"{middle} ({low}-{high})"


_EXPORT_HEADINGS = (
    *("model", "weights, MiB:", "largest:", "tool", "norms, refused:", "seconds:", "ratio:"),
    *("after imports, MiB:", "peak, MiB:", "peak / weights:"),
)


def _export_cells(row: Record, base: Record) -> list[str]:
    """Of one line; ``base`` is what its seconds are compared with."""
    if row["status"] != "ok":
        return [row["model"], "", "", row["tool"], "", row["status"], *[""] * 4]
    ratio = row["seconds"][0] / base["seconds"][0] if "seconds" in base else 0.0
    return [
        row["model"],
        f"{row['weights_mb']:,.0f}",
        f"{row['largest_mb']:,.0f}",
        row["tool"],
        "-" if row["norms"] is None else f"{row['norms']}, {row['refused']}",
        _spread_text(row["seconds"], 1),
        f"{ratio:.2f}" if ratio else "-",
        f"{row['imported_mb'][0]:,.0f}",
        _spread_text(row["peak_stage_mb"], 0),
        _spread_text(row["peak_over_weights"], 2),
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as a Markdown page."""
    rows = {(row["model"], row["tool"]): row for row in report["summary"]}
    bases = [rows.get((model, BASELINE.get(tool, tool)), {}) for model, tool in rows]
    stages = [
        [*key, stage["stage"], _spread_text(stage["seconds"], 1), _spread_text(stage["peak_mb"], 0)]
        for key, row in rows.items()
        for stage in row.get("stages", ())
    ]
    repeats = f"{report['repeats']} runs of each, interleaved: median (smallest-largest)"
    lines = [
        "# Export from PyTorch: time and memory",
        "",
        *bullets([*about(report, "; one thread"), repeats]),
        "",
        "Peak / weights: memory of the process at its peak, less that after its imports, over the "
        "weights. With weights in memory (all but 7b) the module itself is 1.00 of it. Time ratios "
        "are to torch.onnx.export with the same kind of file.",
        "",
        *markdown_table(_EXPORT_HEADINGS, map(_export_cells, rows.values(), bases)),
        "",
        *markdown_table(("model", "tool", "stage", "seconds:", "peak, MiB:"), stages),
        "",
        *(
            f"- {m}, {tool}: {what} adds {_spread_text(share, 3)} to the time of loading and"
            f" exporting, and {_spread_text(memory, 0)} MiB of memory"
            for (m, tool), row in rows.items()
            for what, (share, memory) in row.get("beside", {}).items()
        ),
        *(f"- {m}, {tool}: {row['detail']}" for (m, tool), row in rows.items() if "detail" in row),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Exit code 1 when a run failed."""
    arguments = _arguments()
    start = Start()
    runs = _measure_exports(arguments)
    report = start.facts(*PACKAGES) | {
        "repeats": arguments.repeats,
        "summary": _summarise(runs),
        "runs": runs,
    }
    page = markdown(report)
    written = write_results(report, page, arguments.output)
    print(f"{page}\n{written}")
    return 1 if any(run["status"] != "ok" for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""RMSNorm against LayerNorm, through each backend, forward and backward.

PyTorch, eager and compiled: LayerNorm, torch.nn.RMSNorm, RMSNorm written out as models do, and
ours; forward, and forward + backward. ONNX Runtime, forward: LayerNormalization, RMSNorm as torch
exports it, and what rmsnorm_export makes of that for each target.

The contenders of a group are timed in turn, a sample of each per round, each round starting with
another one. Numbers are medians with the quartiles; a ratio is to LayerNorm of the same group, and
below 1 is faster. Every result is first compared with the formula in float64. LayerNorm has a gain
and a bias, RMSNorm a gain.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_process

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["rmsnorm-export", "torch", "onnxruntime", "onnx"]
HEADINGS = ("rows x n", "dtype", "backend, pass", "norm", "microseconds", "ratio")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", default=["512x768", "512x4096"], help="rows x n of the input")
    add("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    add("--rounds", type=int, default=25, help="samples of each contender")
    add("--sample", type=float, default=0.02, help="least duration of a sample, seconds")
    add("--threads", type=int, default=1, help="threads of PyTorch and of ONNX Runtime")
    add("--no-compile", action="store_true", help="leave out torch.compile (needs a C++ compiler)")
    add("--quick", action="store_true", help="a smoke run of a few seconds")
    add("--output", type=Path, help="JSON file; default scripts/results/bench_layernorm.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.shapes, arguments.dtypes, arguments.no_compile = ["16x64"], ["float32"], True
        arguments.rounds, arguments.sample = 3, 0.001
    if min(arguments.rounds, arguments.threads) < 1 or arguments.sample <= 0:
        parser.error("--rounds and --threads take numbers from 1, --sample one above 0")
    try:
        arguments.sizes = [
            tuple(int(part) for part in text.split("x")) for text in arguments.shapes
        ]
    except ValueError:
        parser.error(f"--shapes takes rows x n as in 512x4096, got {' '.join(arguments.shapes)}")
    if any(len(size) != 2 or min(size) < 1 for size in arguments.sizes):
        parser.error(f"--shapes takes rows x n as in 512x4096, got {' '.join(arguments.shapes)}")
    return arguments


def _seconds(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def samples(
    runs: dict[str, Callable[[], object]], rounds: int, least: float
) -> dict[str, list[float]]:
    """Interleaved samples of each function, in seconds per call."""
    times = {}
    for name, run in runs.items():
        _seconds(run, 3)
        times[name] = max(1, round(least / _seconds(run, 5)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for index in range(rounds):
        first = index % len(names)
        for name in [*names[first:], *names[:first]]:
            found[name].append(_seconds(runs[name], times[name]))
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles, smallest and largest."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {
        "median": statistics.median(values),
        "low": low,
        "high": high,
        "min": min(values),
        "max": max(values),
    }


def ratio(values: list[float], base: list[float]) -> dict[str, float]:
    """Of each sample to the base's sample of the same round: a busy machine slows both."""
    return spread([value / other for value, other in zip(values, base, strict=True)])


def _measure(
    rows: int, n: int, dtype_name: str, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[str]]:
    import bench_norms
    import torch

    dtype = getattr(torch, dtype_name)
    compiled = not arguments.no_compile
    contenders, wrong = bench_norms.torch_contenders(rows, n, dtype, compiled=compiled)
    if dtype_name == "float32":
        more, also_wrong = bench_norms.onnx_contenders(rows, n)
        contenders, wrong = contenders + more, wrong + also_wrong
    found = []
    for group in dict.fromkeys(contender.group for contender in contenders):
        runs = {c.name: c.run for c in contenders if c.group == group}
        print(f"{rows} x {n} {dtype_name}, {group}", file=sys.stderr, flush=True)
        taken = samples(runs, arguments.rounds, arguments.sample)
        for name, values in taken.items():
            found.append(
                {
                    "rows": rows,
                    "n": n,
                    "dtype": dtype_name,
                    "group": group,
                    "norm": name,
                    "seconds": spread(values),
                    "ratio": ratio(values, taken[bench_norms.BASE]),
                    "samples": values,
                }
            )
    return found, [f"{rows} x {n} {dtype_name}, {line}" for line in wrong]


def _cells(row: dict[str, Any]) -> list[str]:
    def text(value: dict[str, float], factor: float, digits: int) -> str:
        middle, low, high = (value[key] * factor for key in ("median", "low", "high"))
        return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"

    shape = f"{row['rows']} x {row['n']}"
    times = [text(row["seconds"], 1e6, 0), text(row["ratio"], 1, 2)]
    return [shape, row["dtype"], row["group"], row["norm"], *times]


def _head(report: dict[str, Any]) -> list[str]:
    machine, load = report["machine"], report["load_average"]
    return [
        f"{report['date']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}, "
        f"{report['options']['threads']} thread(s), {report['options']['rounds']} rounds",
        ", ".join(f"{name} {text}" for name, text in report["versions"].items()),
        f"load average of the machine: {load['before']:.2f} before, {load['after']:.2f} after",
        "median (quartiles); ratios are to LayerNorm in the same backend and pass, round by round",
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as a Markdown page."""
    lines = ["# RMSNorm against LayerNorm", "", *(f"- {line}" for line in _head(report)), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|---|---:|---:|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in report["summary"]]
    lines += ["", *(f"- wrong, not timed: {line}" for line in report["wrong"])]
    return "\n".join(lines).rstrip() + "\n"


def render(report: dict[str, Any]) -> None:
    """Print the report as a table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width
        console = Console(highlight=False, width=150)
    for line in _head(report):
        console.print(line, markup=False)
    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(HEADINGS):
        table.add_column(name, justify="right" if index > 3 else "left", no_wrap=True)
    previous: list[str] = []
    for row in report["summary"]:
        cells = _cells(row)
        if previous and previous != cells[:3]:
            table.add_section()
        table.add_row(*(cells[:3] if previous != cells[:3] else ["", "", ""]), *cells[3:])
        previous = cells[:3]
    console.print(table)
    for line in report["wrong"]:
        console.print(f"wrong, not timed: {line}", markup=False)


def main() -> int:
    arguments = _arguments()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    load_before = os.getloadavg()[0]
    import torch

    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for size in arguments.sizes:
        for dtype in arguments.dtypes:
            found, bad = _measure(*size, dtype, arguments)
            rows, wrong = rows + found, wrong + bad
    options = {key: value for key, value in vars(arguments).items() if key != "output"}
    report = {
        "schema_version": 1,
        "date": date,
        "machine": bench_process.machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "versions": bench_process.versions(PACKAGES),
        "options": options,
        "summary": [{k: v for k, v in row.items() if k != "samples"} for row in rows],
        "wrong": wrong,
        "runs": rows,
    }
    render(report)
    output: Path = arguments.output or ROOT / "scripts" / "results" / "bench_layernorm.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    tables = output.with_suffix(".md")
    tables.write_text(markdown(report), encoding="utf-8")
    print(f"written: {output} and {tables}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

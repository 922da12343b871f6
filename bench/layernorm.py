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
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

from rmsnorm_export.printable import plural
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.results import Start, about, bullets, write_results
from tests.tools.lib.tables import markdown_table, print_table
from tests.tools.lib.timing import Clock, interleaved, seconds_of

PACKAGES = ("rmsnorm-export", "torch", "onnxruntime", "onnx")
_NORM_HEADINGS = ("rows x n", "dtype", "backend, pass", "norm", "microseconds:", "ratio:")


def _arguments() -> argparse.Namespace:
    options = parser("bench.layernorm", __doc__)
    add = options.add_argument
    add("--shapes", nargs="+", default=["512x768", "512x4096"], help="rows x n of the input")
    add("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    add("--rounds", type=int, default=25, help="samples of each contender")
    add("--sample", type=float, default=0.02, help="least duration of a sample, seconds")
    add("--threads", type=int, default=1, help="threads of PyTorch and of ONNX Runtime")
    add("--no-compile", action="store_true", help="leave out torch.compile (needs a C++ compiler)")
    add("--quick", action="store_true", help="a smoke run of a few seconds")
    add_output(options, "bench_layernorm.json")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.shapes, arguments.dtypes, arguments.no_compile = ["16x64"], ["float32"], True
        arguments.rounds, arguments.sample = 3, 0.001
    if min(arguments.rounds, arguments.threads) < 1 or arguments.sample <= 0:
        options.error("--rounds and --threads take numbers from 1, --sample one above 0")
    if not all(re.fullmatch(r"0*[1-9]\d*x0*[1-9]\d*", text) for text in arguments.shapes):
        options.error(f"--shapes takes rows x n as in 512x4096, got {' '.join(arguments.shapes)}")
    arguments.sizes = [tuple(map(int, text.split("x"))) for text in arguments.shapes]
    return arguments


def samples(
    runs: dict[str, Callable[[], object]],
    rounds: int,
    least: float,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Interleaved samples of each function, in seconds per call; a sample takes ``least``."""

    def sampler(run: Callable[[], object]) -> Callable[[], float]:
        seconds_of(run, 3, clock)
        times = max(1, round(least / max(seconds_of(run, 5, clock), 1e-9)))
        return lambda: seconds_of(run, times, clock)

    return dict(zip(runs, interleaved([*map(sampler, runs.values())], rounds), strict=True))


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


def _measure_norms(
    rows: int, n: int, dtype_name: str, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[str]]:
    import torch

    from bench import norms

    dtype = getattr(torch, dtype_name)
    compiled = not arguments.no_compile
    contenders, wrong = norms.torch_contenders(rows, n, dtype, compiled=compiled)
    if dtype_name == "float32":
        more, also_wrong = norms.onnx_contenders(rows, n)
        contenders, wrong = contenders + more, wrong + also_wrong
    found = []
    for group in dict.fromkeys(contender.group for contender in contenders):
        runs = {c.name: c.run for c in contenders if c.group == group}
        say(f"{rows} x {n} {dtype_name}, {group}")
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
                    "ratio": ratio(values, taken[norms.BASE]),
                    "samples": values,
                }
            )
    return found, [f"{rows} x {n} {dtype_name}, {line}" for line in wrong]


def _norm_cells(row: dict[str, Any]) -> list[str]:
    def text(value: dict[str, float], factor: float, digits: int) -> str:
        middle, low, high = (value[key] * factor for key in ("median", "low", "high"))
        return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"

    shape = f"{row['rows']} x {row['n']}"
    times = [text(row["seconds"], 1e6, 0), text(row["ratio"], 1, 2)]
    return [shape, row["dtype"], row["group"], row["norm"], *times]


def _head(report: dict[str, Any]) -> list[str]:
    options = report["options"]
    return [
        *about(report, f", {plural(options['threads'], 'thread')}, {options['rounds']} rounds"),
        "median (quartiles); ratios are to LayerNorm in the same backend and pass, round by round",
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as a Markdown page."""
    lines = ["# RMSNorm against LayerNorm", "", *bullets(_head(report)), ""]
    lines += [*markdown_table(_NORM_HEADINGS, map(_norm_cells, report["summary"])), ""]
    lines += bullets([f"wrong, not timed: {line}" for line in report["wrong"]])
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Exit code 1 when a norm is wrong."""
    arguments = _arguments()
    start = Start()
    import torch

    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for size in arguments.sizes:
        for dtype in arguments.dtypes:
            found, bad = _measure_norms(*size, dtype, arguments)
            rows, wrong = rows + found, wrong + bad
    report = start.facts(*PACKAGES) | {
        "options": {key: value for key, value in vars(arguments).items() if key != "output"},
        "summary": [{k: v for k, v in row.items() if k != "samples"} for row in rows],
        "wrong": wrong,
        "runs": rows,
    }
    print_table(
        _NORM_HEADINGS,
        map(_norm_cells, report["summary"]),
        above=_head(report),
        below=[f"wrong, not timed: {line}" for line in wrong],
        same=3,
    )
    print(write_results(report, markdown(report), arguments.output))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

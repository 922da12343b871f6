"""Time and peak memory of ``optimize`` beside its peers, on the same graphs in one run.

Graphs: decoders of 1,000 to 200,000 nodes in the spelling of torch.onnx.export(dynamo=True), and a
126-layer model with 795 GB of external weights in one sparse file. Tools: ours (targets portable
and ort), onnxscript (optimize_for_ort; optimizer and onnx_fusions), the optimizer of
onnxruntime.transformers, onnxsim and OnnxSlim, each as its documentation or command line runs it;
and onnx_ir's load and save alone, which is the floor for ours and for onnxscript.

Small graphs that ask for much work (a chain of casts with many divisions, one gain that thousands
of nodes read) are run by ours alone, with N and with 2 N: the ratio says how the work grows.

Every run is a process of its own with a memory ceiling and a time limit; the repeats of the tools
are interleaved. Each number is a median with its smallest and largest value. Most peers do more
than norms, so a ratio says what a user waits for, not which matcher is faster. Some grow faster
than the graph, so they only get graphs up to --peer-limit nodes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.graphs import HARD
from bench.optimize_report import (
    FLOOR,
    doubling,
    fit,
    markdown,
    median_and_range,
    show,
    summarise,
)
from rmsnorm_export.system.machine import memory_available
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.process import Outcome, run_process, run_step
from tests.tools.lib.results import Start, write_results

OURS = ("ours portable", "ours ort")
PEERS = ("onnxscript ort", "onnxscript onnx", "ort.transformers", "onnxsim", "onnxslim")
ALL_TOOLS = (*OURS, FLOOR, *PEERS)
PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxsim", "onnxslim")
SPARSE = "sparse 795 GB"


def _step(*step: str, folder: Path, **limits: Any) -> Outcome:
    return run_step("bench.optimize_step", list(step), folder=folder, **limits)


def _arguments() -> argparse.Namespace:
    options = parser("bench.optimize", __doc__)
    add = options.add_argument
    add("--sizes", type=int, nargs="*", default=[1_000, 2_000, 5_000, 20_000, 200_000])
    add("--peer-limit", type=int, default=2_000, help="largest graph for the peers, in nodes")
    add("--repeats", type=int, default=3, help="runs of each tool on each graph")
    add("--opset", type=int, default=23, help="opset of the decoders; onnxsim only fuses at 23")
    add("--tools", nargs="+", choices=ALL_TOOLS, default=list(ALL_TOOLS))
    add("--hard", type=int, default=10_000, help="size N of the graphs of much work; 0: none")
    add("--no-sparse", action="store_true", help="leave out the model with 795 GB of weights")
    add("--help-runs", type=int, default=20, help="runs of rmsnorm-export --help; 0: none")
    add("--memory", type=float, default=8, help="memory ceiling of a run, GiB")
    add("--time-limit", type=float, default=300, help="time limit of a run, seconds")
    add("--quick", action="store_true", help="a smoke run of a few seconds")
    add_output(options, "bench_optimize.json")
    arguments = options.parse_args()
    arguments.families = list(HARD)
    if arguments.quick:
        arguments.sizes, arguments.peer_limit, arguments.repeats = [200, 400], 0, 1
        arguments.no_sparse, arguments.help_runs, arguments.hard = True, 3, 100
        arguments.families = ["casts"]
    if min(arguments.sizes, default=1) < 1 or arguments.repeats < 1:
        options.error("--sizes and --repeats take numbers from 1")
    return arguments


def _measure_tools(
    graph: dict[str, Any], tools: list[str], arguments: argparse.Namespace, folder: Path
) -> list[dict[str, Any]]:
    """Interleaved runs of the tools on one graph; a tool that failed once is not run again."""
    model = str(graph["path"])
    # The output lies beside the input, where external weights can be referenced.
    output = graph["path"].with_name("out.onnx")
    limit = min(int(arguments.memory * 2**30), int(memory_available() * 0.8))
    runs: list[dict[str, Any]] = []
    failed: set[str] = set()
    for repeat in range(arguments.repeats):
        # Each round starts with another tool, so that none always runs after the same one.
        order = [*tools[repeat % len(tools) :], *tools[: repeat % len(tools)]]
        for tool in order:
            if tool in failed:
                continue
            before = set(output.parent.iterdir())
            outcome = _step(
                *("run", tool, model, str(output), "RESULT", str(limit)),
                folder=folder,
                time_limit=arguments.time_limit,
                memory_limit=limit,
            )
            status, detail, counted = outcome.status, outcome.detail, {}
            if status == "ok":
                count = _step("count", str(output), "RESULT", folder=folder)
                status = "ok" if count.status == "ok" else "no readable output"
                detail, counted = count.detail, count.result
            if status != "ok":
                failed.add(tool)
            say(f"{graph['name']}, {tool}: {status}, {outcome.wall:.1f} s")
            runs.append(
                {
                    "graph": graph["name"],
                    "nodes": graph["nodes"],
                    "norms": graph["norms"],
                    "tool": tool,
                    "repeat": repeat,
                    "status": status,
                    "detail": detail,
                    "process_seconds": outcome.wall,
                    "peak_mb": outcome.peak_mb,
                    "memory_limit": limit,
                    "fused": counted.get("fused"),
                    "nodes_after": counted.get("nodes"),
                    **outcome.result,
                }
            )
            for path in set(output.parent.iterdir()) - before:
                path.unlink()
    return sorted(runs, key=lambda run: tools.index(run["tool"]))


def _graph(step: list[str], name: str, path: Path, folder: Path) -> dict[str, Any]:
    written = _step(*step, folder=folder)
    if written.status != "ok":
        raise SystemExit(f"error: {name} could not be written\nfound: {written.detail}")
    return {"name": name, "path": path, **written.result}


def _help(runs: int, folder: Path) -> dict[str, Any]:
    if not runs:
        return {}
    command = [str(Path(sys.executable).with_name("rmsnorm-export")), "--help"]
    seconds = []
    for _ in range(runs):
        code, wall, _ = run_process(command, time_limit=60, log=folder / "help.txt")
        if code:
            raise SystemExit(f"error: {' '.join(command)} ended with {code}")
        seconds.append(wall)
    return {"repeats": runs, "seconds": median_and_range(seconds)}


def main() -> int:
    """Exit code 1 when ours failed."""
    arguments = _arguments()
    start = Start()
    ours = [tool for tool in arguments.tools if tool in (*OURS, FLOOR)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench_optimize_") as name:
        folder, models = Path(name), Path(name) / "models"
        models.mkdir()
        help_time = _help(arguments.help_runs, folder)
        for size in sorted(arguments.sizes):
            path = models / "model.onnx"
            step = ["decoder", str(path), str(size), str(arguments.opset), "RESULT"]
            graph = _graph(step, f"decoder {size:,}", path, folder)
            tools = arguments.tools if size <= arguments.peer_limit else ours
            runs += _measure_tools(graph, tools, arguments, folder) if tools else []
            path.unlink()
        for family in arguments.families if arguments.hard else ():
            for size in (arguments.hard, 2 * arguments.hard):
                path = models / "model.onnx"
                step = ["hard", str(path), family, str(size), "RESULT"]
                graph = _graph(step, f"{family} {size:,}", path, folder)
                runs += _measure_tools(graph, ours, arguments, folder)
                path.unlink()
        if not arguments.no_sparse:
            path = models / "sparse.onnx"
            graph = _graph(["sparse", str(path), "RESULT"], SPARSE, path, folder)
            runs += _measure_tools(graph, arguments.tools, arguments, folder)
    rows = summarise(runs)
    report = start.facts(*PACKAGES) | {
        "options": {key: value for key, value in vars(arguments).items() if key != "output"},
        "help": help_time,
        "growth": fit(rows),
        "doubling": doubling(rows, arguments.families),
        "summary": rows,
        "runs": runs,
    }
    show(report)
    print(write_results(report, markdown(report), arguments.output))
    return 1 if any(row["status"] != "ok" and row["tool"] in OURS for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())

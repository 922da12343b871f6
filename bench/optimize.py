"""What ``optimize`` gives and takes beside its peers, on the same models in one run.

    python -m bench.optimize norms
    python -m bench.optimize times

norms: of tiny models of transformers that no test uses, how many norms are one kernel in a session
of ONNX Runtime, with a chart (bench/norms.py counts). Every model is exported once, which takes
minutes for each ten, and kept.

times: seconds and peak memory. Graphs: decoders in the spelling of torch.onnx.export(dynamo=True),
and small ones that ask for much work. Each run is a process of its own under a time limit, the
tools in turn; a number is the median, from before a tool loads the file until after it has saved,
without imports.

Tools: ours, onnxscript, the optimizer of onnxruntime.transformers and OnnxSlim, each as its
documentation runs it; for the times onnx_ir's load and save alone, too, which is the floor. Most
peers do more than norms, so a ratio of times says what a user waits for, not which matcher is
faster.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import norms
from bench.graphs import HARD, write_decoder, write_hard
from bench.lib.child import report_one, run_one
from bench.lib.results import Start, about, bullets, write_results
from bench.lib.tables import markdown_table, print_table
from bench.norms import PORTABLE
from rmsnorm_export.system.files import write_whole
from toolbox.command import RESULTS, module_command, parser, say

PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxslim")
FLOOR = "onnx_ir load + save"
HEADINGS = ("graph", "tool", "seconds:", "to the floor:", "peak, MiB:", "")


def _ours(target: str) -> Callable[[str, str], None]:
    import rmsnorm_export as rx

    importlib.import_module("rmsnorm_export.api")
    return lambda model, output: rx.optimize(model, target=target).save(output) and None


def _floor() -> Callable[[str, str], None]:
    import onnx_ir as ir

    return lambda model, output: ir.save(ir.load(model), output)


def _onnxscript() -> Callable[[str, str], None]:
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    return lambda model, output: ir.save(optimize_for_ort(ir.load(model))[0], output)


def _transformers() -> Callable[[str, str], None]:
    from onnxruntime.transformers import optimizer

    return lambda model, output: optimizer.optimize_model(model).save_model_to_file(output)


def _onnxslim() -> Callable[[str, str], None]:
    import onnxslim

    return lambda model, output: onnxslim.slim(model, output)


TOOLS: dict[str, Callable[[], Callable[[str, str], None]]] = {
    PORTABLE: lambda: _ours("portable"),
    "ours ort": lambda: _ours("ort"),
    FLOOR: _floor,
    "onnxscript": _onnxscript,
    "onnxruntime.transformers": _transformers,
    "onnxslim": _onnxslim,
    "ours onnx": lambda: _ours("onnx"),
}
OURS = (PORTABLE, "ours ort", FLOOR)


def _arguments() -> argparse.Namespace:
    options = parser("bench.optimize", __doc__)
    add = options.add_argument
    add("part", choices=("norms", "times"), help="what is measured")
    add("--models", nargs="+", default=[], help="norms: types of transformers instead of all")
    add("--library", type=Path, help="norms: our CPU kernels, of plugin build")
    add("--engines", type=int, default=0, help="norms: models built by TensorRT-RTX, too")
    add("--sizes", type=int, nargs="*", default=[2_000, 20_000, 200_000], help="nodes of a decoder")
    text = "nodes of the graphs that ask for much work"
    add("--hard", type=int, nargs="*", default=[10_000, 20_000], help=text)
    add("--peer-limit", type=int, default=2_000, help="largest graph for the peers, in nodes")
    add("--repeats", type=int, default=3, help="runs of each tool on each graph")
    add("--time-limit", type=float, default=300, help="time limit of a run, seconds")
    add("--one", nargs=3, metavar=("TOOL", "MODEL", "OUTPUT"), help="one run, in this process")
    add("--output", type=Path, help="JSON file; by default of bench/results")
    return options.parse_args()


def _one(tool: str, model: str, output: str) -> None:
    run = TOOLS[tool]()
    report_one(lambda: run(model, output))


def _run(tool: str, model: Path, limit: float) -> dict[str, Any]:
    output = model.with_name("out.onnx")
    command = module_command("bench.optimize", "times", "--one", tool, str(model), str(output))
    result = run_one(command, limit)
    output.unlink(missing_ok=True)
    return result


def _rows(name: str, model: Path, tools: tuple[str, ...], options: argparse.Namespace) -> list[Any]:
    """Return one row for each tool, from runs in turn; a tool that failed is not run again."""
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    for _ in range(options.repeats):
        for tool, earlier in runs.items():
            if not any("error" in run for run in earlier):
                earlier.append(_run(tool, model, options.time_limit))
                say(f"{name}, {tool}: {earlier[-1]}")
    medians = {
        tool: {key: statistics.median(run[key] for run in all_) for key in ("seconds", "peak_mb")}
        for tool, all_ in runs.items()
        if all("error" not in run for run in all_)
    }
    floor = medians[FLOOR]["seconds"]
    return [
        [name, tool, *_cells(medians[tool], floor), ""]
        if tool in medians
        else [name, tool, "", "", "", runs[tool][-1]["error"]]
        for tool in tools
    ]


def _cells(one: dict[str, float], floor: float) -> list[str]:
    return [
        f"{one['seconds']:.2f}",
        f"{one['seconds'] / floor:.2f}",
        f"{one['peak_mb']:,.0f}",
    ]


def _times(options: argparse.Namespace) -> int:
    """Return 1 when ours failed."""
    start, rows = Start(), []
    with tempfile.TemporaryDirectory(prefix="bench_optimize_") as folder:
        model = Path(folder) / "model.onnx"
        for size in options.sizes:
            nodes, count = write_decoder(model, size, opset=18)
            tools = tuple(TOOLS) if size <= options.peer_limit else OURS
            rows += _rows(f"decoder, {nodes:,} nodes, {count:,} norms", model, tools, options)
        for name in HARD:
            for size in options.hard:
                nodes, _ = write_hard(model, name, size)
                rows += _rows(f"{name}, {nodes:,} nodes", model, OURS, options)
    report = start.facts(*PACKAGES) | {
        "rows": [dict(zip(HEADINGS, row, strict=True)) for row in rows]
    }
    print_table(HEADINGS, rows, above=about(report))
    page = ["# Time and memory of `optimize`", "", *bullets(about(report)), ""]
    page += markdown_table(HEADINGS, rows)
    output = options.output or RESULTS / "optimize.json"
    print(write_results(report, "\n".join(page) + "\n", output))
    return int(any(row[1] in OURS and row[-1] for row in rows))


def _norms(options: argparse.Namespace) -> int:
    """Return 1 when ours failed, or is wrong."""
    start, output = Start(), options.output or RESULTS / "norms.json"
    tools, models, left_out, engines = {}, [], [], []
    for name, make in TOOLS.items():
        try:
            tools |= {name: make()} if name != FLOOR else {}
        except ImportError as error:
            say(f"without {name}: {error}")
    for export in norms.held_out(options.models):
        is_counted = not isinstance(export, norms.LeftOut)
        counts = norms.count_all(export, tools, options.library) if is_counted else export
        if isinstance(counts, norms.LeftOut):
            left_out.append(counts)
            say(f"{counts.key}: {counts.reason}")
            continue
        models.append((export, counts))
        say(f"{export.key}: {norms.brief(*models[-1])}")
        if len(engines) < options.engines and "float32" in export.key:
            engines.append([export.key, *norms.engine_cells(export, tools)])
            say(f"engines: {engines[-1]}")
    every = sum(export.norms for export, _ in models)
    table = norms.totals(models)
    counted = {norms.model_type(export) for export, _ in models}
    types = counted | {norms.model_type(one) for one in left_out}
    head = [
        f"{len(counted)} of {len(types)} types of model, {len(models)} exports, {every:,} norms"
    ]
    report = start.facts(*PACKAGES, "torch", "transformers", "tensorrt_rtx")
    above = [*about(report), *head]
    report |= {
        "norms": every,
        "rows": [dict(zip(norms.HEADINGS, row, strict=True)) for row in table],
        "models": norms.details(models),
        "left_out": {one.key: one.reason for one in left_out},
        "engines": engines,
    }
    print_table(norms.HEADINGS, table, above=above)
    page = ["# Norms that are one kernel", "", "![chart](norms.svg)", "", *bullets(above), ""]
    page += [norms.MEANING, "", *markdown_table(norms.HEADINGS, table)]
    if engines:
        page += ["", norms.ENGINE_MEANING, "", *markdown_table(norms.ENGINE_HEADINGS, engines)]
    page += ["", *norms.shortfalls(models), *norms.left_out(left_out)]
    print(write_results(report, "\n".join(page) + "\n", output))
    write_whole(output.with_suffix(".svg"), norms.chart(table, every, report["versions"]))
    return int(any(row[0].startswith("ours") and row[-2:] != ["0", "0"] for row in table))


def main() -> int:
    options = _arguments()
    if options.one:
        _one(*options.one)
        return 0
    return _norms(options) if options.part == "norms" else _times(options)


if __name__ == "__main__":
    sys.exit(main())

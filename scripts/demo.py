"""The whole path on real architectures: PyTorch, ONNX, optimize for every target, proof, speed.

Five models of the transformers package with random weights are taken to ONNX twice: by PyTorch's
exporter, after which every RMSNorm is made one node for each target, and straight by `rx.export`,
which names each node after its module. Every site is proved, the logits are compared with those of
PyTorch's file (run without any graph optimization) and of PyTorch, and the files are timed in turn.
At the end the first model gets a page for the browser, and an engine where TensorRT-RTX is
installed.

Exit code 1 when a norm was missed on the portable target or left out without a reason on another, a
site is not proved or has no module, the logits moved, or no engine could be built.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import get_args

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: the weights are random

import bench_process
import demo_measure
import demo_models
import demo_page
import demo_report
import numpy as np
import torch
from rich.console import Console

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.show.report_text import render

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [
    "rmsnorm-export",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "torch",
    "transformers",
]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _export(architecture: demo_models.Architecture, folder: Path) -> demo_models.Exported:
    start = time.perf_counter()
    source = demo_models.export(architecture, folder)
    _say(f"{architecture.name}: exported by PyTorch in {time.perf_counter() - start:.1f} s")
    return source


def _demonstrate(
    architecture: demo_models.Architecture, source: demo_models.Exported, seconds: float
) -> list[demo_report.Row]:
    """Put the export of one architecture through every target."""
    before = demo_measure.logits(source.path, source.tokens, optimize=False)
    results = []
    for target in get_args(Target):
        path = source.path.with_name(f"{source.path.stem}.{target}.onnx")
        result = rx.optimize(source.path, target=target, prove=True)
        result.save(path, force=True)
        after = demo_measure.logits(path, source.tokens, optimize=True)
        results.append((target, path, result.report, after))
        _say(f"{architecture.name}: {target} done")
    results.append(_straight(source))
    _say(f"{architecture.name}: {demo_report.STRAIGHT} done")
    speeds = demo_measure.compare_speed(
        source.path, [path for _, path, _, _ in results], source.tokens, seconds=seconds
    )
    return [
        demo_report.Row(
            architecture.name,
            target,
            source.norm_calls,
            report,
            demo_measure.worst_difference(after, before),
            demo_measure.worst_difference(after, source.logits),
            speed,
            str(np.dtype(source.logits.dtype)),
        )
        for (target, _, report, after), speed in zip(results, speeds, strict=True)
    ]


def _straight(source: demo_models.Exported) -> tuple[str, Path, rx.Report, np.ndarray]:
    """The module to a file with one node a norm, in one call."""
    path = source.path.with_name(f"{source.path.stem}.straight.onnx")
    tokens = torch.from_numpy(source.tokens)
    made = rx.export(
        source.module, (tokens,), path, opset=demo_models.OPSET, prove=True, force=True
    )
    after = demo_measure.logits(path, source.tokens, optimize=True)
    return demo_report.STRAIGHT, path, made.report, after


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [architecture.name for architecture in demo_models.ARCHITECTURES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    parser.add_argument("--seconds", type=float, default=8, help="of timing per architecture")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file, and .md")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    start, load = time.perf_counter(), os.getloadavg()[0]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chosen = [a for a in demo_models.ARCHITECTURES if a.name in arguments.only]
    rows: list[demo_report.Row] = []
    endings: list[demo_page.Ending] = []
    for architecture in chosen:
        source = _export(architecture, arguments.folder)
        rows += _demonstrate(architecture, source, arguments.seconds)
        if not endings:
            endings.append(demo_page.end(source, date))
            _say(f"{architecture.name}: page and engine done")
    report = {
        "schema_version": 1,
        "date": date,
        "machine": bench_process.machine(),
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        "versions": bench_process.versions(PACKAGES),
        "models": {architecture.name: architecture.norms for architecture in chosen},
        "rows": [row.as_dict() for row in rows],
    }
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    demo_report.render(report, console)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        arguments.output.with_suffix(".md").write_text(
            demo_report.markdown(report), encoding="utf-8"
        )
    problems = demo_report.problems(rows) + endings[0].problems()
    console.print()
    print(render(endings[0].lines(), styled=console.is_terminal), end="")
    console.print()
    for text in problems:
        console.print(f"problem: {text}", markup=False, soft_wrap=True)
    verdict = f"{len(problems)} problems" if problems else "everything held"
    elapsed = time.perf_counter() - start
    console.print(f"{verdict}; {elapsed:.0f} s; files in {arguments.folder}", soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

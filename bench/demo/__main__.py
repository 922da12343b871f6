"""The whole path on real architectures: PyTorch, ONNX, optimize for every target, proof, speed.

Five models of the transformers package with random weights are taken to ONNX twice: by PyTorch's
exporter, after which every RMSNorm is made one node for each target, and straight by `rx.export`,
which names each node after its module. Every site is proved, the logits are compared with those of
PyTorch's file (run without any graph optimization) and of PyTorch, and the files are timed in turn.
At the end the first model gets a page for the browser, and an engine where TensorRT-RTX is
installed; and one command takes a decoder from its config.json to a folder with its cache, which
writes the same tokens as PyTorch.

Exit code 1 when a norm was missed on the portable target or left out without a reason on another, a
site is not proved or has no module, the logits or tokens moved, or no engine could be built.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: the weights are random

import torch

import rmsnorm_export as rx
from bench.demo.models import ARCHITECTURES, OPSET, Exported, export
from bench.demo.report import STRAIGHT, Row, show
from bench.lib.measure import compare_speed, opened, worst_difference
from rmsnorm_export.cli.main import main as command_line
from rmsnorm_export.lower.targets import Target
from toolbox.command import ROOT, parser, say


def _demonstrate(name: str, source: Exported, seconds: float) -> list[Row]:
    """Put the export of one architecture through every target, and its module straight to a file
    with one node a norm."""
    (before,) = opened(source.path, source.tokens, optimize=False)()
    made: dict[str, tuple[Path, rx.Report]] = {}
    for target in get_args(Target):
        path = source.path.with_name(f"{source.path.stem}_{target}.onnx")
        result = rx.optimize(source.path, target=target, prove=True)
        result.save(path, force=True)
        made[target] = path, result.report
        say(f"{name}: {target} done")
    path = source.path.with_name(f"{source.path.stem}_straight.onnx")
    tokens = torch.from_numpy(source.tokens)
    straight = rx.export(source.module, (tokens,), path, opset=OPSET, prove=True, force=True)
    made[STRAIGHT] = path, straight.report
    say(f"{name}: {STRAIGHT} done")
    paths = [path for path, _ in made.values()]
    speeds = compare_speed(source.path, paths, source.tokens, seconds=seconds)
    rows = []
    for (target, (path, report)), speed in zip(made.items(), speeds, strict=True):
        (after,) = opened(path, source.tokens)()
        differences = worst_difference(after, before), worst_difference(after, source.logits)
        rows.append(Row(name, target, source.norm_calls, report, *differences, speed))
    return rows


def _run(*words: str) -> list[str]:
    """Run a command, which may replace files; what did not hold."""
    command = [*words, "--force"]
    say(f"rmsnorm-export {shlex.join(command)}")
    code = command_line(command)
    return [] if code == 0 else [f"rmsnorm-export {words[0]} ended with {code}"]


def _page_and_engine(source: Path) -> list[str]:
    """Write the report of a model as a page, and an engine, beside it; what did not hold."""
    path, page = source.with_name(f"{source.stem}_portable.onnx"), source.with_suffix(".html")
    files = ["-o", str(path), "--report", str(page)]
    problems = _run("optimize", str(source), "--prove", "--quiet", *files)
    print(f"\nreport of {source.name}, for a browser: {page}\n")
    if find_spec("tensorrt_rtx") is None:
        print('no engine: TensorRT-RTX is not installed (pip install ".[tensorrt-rtx]")')
        return problems
    engine = path.with_suffix(".engine")  # building needs no GPU
    return problems + _run("build", str(path), "-o", str(engine), "--backend", "tensorrt-rtx")


def _generate(folder: Path, layers: int) -> list[str]:
    """Export a decoder with its cache and let it write beside PyTorch; what did not hold.

    Its config.json has the sizes of the demo's first model, its weights are random. Two rows of
    32 tokens are written, one of which is padded.
    """
    config = next(iter(ARCHITECTURES.values())).config()
    config.num_hidden_layers, config.use_cache = layers, True
    config.architectures = ["LlamaForCausalLM"]
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    how = ["--task", "generation", "--fusions", "cpu", "--verify", "--require", "all"]
    return _run("export", str(path), *how, "-o", str(folder / "decoder"))


def _arguments() -> argparse.Namespace:
    options = parser("bench.demo", __doc__)
    every = [*ARCHITECTURES]
    options.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME")
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    options.add_argument("--seconds", type=float, default=8, help="of timing per architecture")
    options.add_argument("--layers", type=int, default=4, help="of each model (default: 4)")
    options.add_argument("--no-decoder", action="store_true", help="omit the last part")
    return options.parse_args()


def main() -> int:
    """Exit code 1 when something did not hold."""
    arguments = _arguments()
    begun = time.perf_counter()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    paths: list[Path] = []
    for name in arguments.only:
        start = time.perf_counter()
        source = export(name, arguments.folder, arguments.layers)
        say(f"{name}: exported by PyTorch in {time.perf_counter() - start:.1f} s")
        rows += _demonstrate(name, source, arguments.seconds)
        paths.append(source.path)
    problems = [text for row in rows for text in row.problems()]
    problems += _page_and_engine(paths[0])
    if not arguments.no_decoder:
        problems += _generate(arguments.folder, arguments.layers)
    print(f"\nfiles in {arguments.folder}: {', '.join(sorted(os.listdir(arguments.folder)))}\n")
    show(rows)
    for text in problems:
        print(f"problem: {text}")
    verdict = f"{len(problems)} problems" if problems else "everything held"
    print(f"{verdict}; {time.perf_counter() - begun:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

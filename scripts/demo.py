"""The whole path on real architectures: PyTorch, ONNX, optimize for every target, proof, speed.

Five models of the transformers package with random weights are exported, every RMSNorm is made one
node for each target with a proof per site, the logits are compared with the exported file (run
without any graph optimization) and with PyTorch, and raw and optimized files are timed in turn.

Exit code 1 when a norm was missed on the portable target, a proof failed, or the logits moved.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import get_args

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: the weights are random

import demo_measure
import demo_models
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import rmsnorm_export as rx
from rmsnorm_export.report.result import Target

ROOT = Path(__file__).resolve().parents[1]

LOGIT_BOUND = {"float32": 1e-4, "float16": 1e-2}
"""Largest logit difference, relative to the largest logit. One ulp per norm is 6e-8 (f32) or 5e-4
(f16); some twenty norms and the matrices between them amplify that. A constant in the place of one
random gain moved the logits by 0.008 to 0.6 in f32, and by 0.03 or more in f16."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One architecture on one target: a line of the table."""

    architecture: str
    target: str
    norm_calls: int
    report: rx.Report
    source_difference: float
    torch_difference: float
    speed: demo_measure.Speed
    dtype: str

    def problems(self) -> list[str]:
        """What must not happen."""
        found = []
        sites = len(self.report.fused) + len(self.report.kept)
        if self.target == "portable" and sites != self.norm_calls:
            found.append(f"{sites} of {self.norm_calls} norms are one node")
        if any(site.proof is None or not site.proof.passed for site in self.report.fused):
            found.append("a site is not proved")
        if any("proof" in refusal.reason for refusal in self.report.refused):
            found.append("a proof failed")
        if not self.source_difference <= LOGIT_BOUND[self.dtype]:
            found.append(f"the logits moved by {self.source_difference:.1e}")
        return [f"{self.architecture}, {self.target}: {text}" for text in found]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _demonstrate(architecture: demo_models.Architecture, folder: Path, seconds: float) -> list[Row]:
    """Export one architecture and put it through every target."""
    start = time.perf_counter()
    source = demo_models.export(architecture, folder)
    _say(f"{architecture.name}: exported in {time.perf_counter() - start:.1f} s")
    before = demo_measure.logits(source.path, source.tokens, optimize=False)
    results = []
    for target in get_args(Target):
        path = source.path.with_name(f"{source.path.stem}.{target}.onnx")
        result = rx.optimize(source.path, target=target, prove=True)
        result.save(path, force=True)
        after = demo_measure.logits(path, source.tokens, optimize=True)
        results.append((target, path, result.report, after))
        _say(f"{architecture.name}: {target} done")
    speeds = demo_measure.compare_speed(
        source.path, [path for _, path, _, _ in results], source.tokens, seconds=seconds
    )
    return [
        Row(
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


def _classes(report: rx.Report) -> str:
    """How many sites have which class of numerics."""
    counts = Counter(site.numerics for site in report.fused)
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


def _table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("architecture", "target"):
        table.add_column(name, no_wrap=True)
    for name in ("norms in\nPyTorch", "fused", "refused", "proofs\npassed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("numerics", no_wrap=True)
    table.add_column("nodes,\nwith functions", justify="right", no_wrap=True)
    table.add_column("worst logit difference\nto export / PyTorch", justify="right", no_wrap=True)
    table.add_column("time, optimized / export\n(95 % interval)")
    previous = ""
    for row in rows:
        if previous and row.architecture != previous:
            table.add_section()
        report = row.report
        proofs = [site.proof for site in report.fused if site.proof is not None]
        table.add_row(
            row.architecture if row.architecture != previous else "",
            row.target,
            str(row.norm_calls),
            str(len(report.fused)),
            str(len(report.refused)),
            f"{sum(proof.passed for proof in proofs)} of {len(proofs)}",
            _classes(report),
            f"{report.nodes_before} -> {report.nodes_after}",
            f"{row.source_difference:.1e} / {row.torch_difference:.1e}",
            row.speed.text(),
        )
        previous = row.architecture
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [architecture.name for architecture in demo_models.ARCHITECTURES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    parser.add_argument("--seconds", type=float, default=8, help="of timing per architecture")
    arguments = parser.parse_args()
    start = time.perf_counter()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for architecture in demo_models.ARCHITECTURES
        if architecture.name in arguments.only
        for row in _demonstrate(architecture, arguments.folder, arguments.seconds)
    ]
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(_table(rows))
    for architecture in demo_models.ARCHITECTURES:
        if architecture.name in arguments.only:
            console.print(f"{architecture.name}: {architecture.norms}")
    console.print(
        "Logit differences are relative to the largest logit; the export is run without any graph "
        "optimization,\nthe optimized file with the default one. Times are medians of interleaved "
        "runs, both with the default one."
    )
    # Many norms of a target are refused for the same reason: said once.
    reasons = {
        f"{row.architecture}, {row.target}: {refusal.message}"
        for row in rows
        for refusal in row.report.refused
    }
    for text in sorted(reasons):
        console.print(f"refused: {text}", markup=False)
    problems = [text for row in rows for text in row.problems()]
    for text in problems:
        console.print(f"problem: {text}", markup=False)
    elapsed = time.perf_counter() - start
    console.print(f"files: {arguments.folder}; {elapsed:.0f} s", markup=False, soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

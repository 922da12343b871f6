"""Judge mutants, count, and write down what is wrong."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnx

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from tests.tools.fuzz import mutants
from tests.tools.fuzz.judge import Finding, InvalidError, Mutant, Optimize, Setting, judge
from tests.tools.fuzz.mutants import Mutated, Seed


@dataclasses.dataclass(slots=True)
class Work:
    """What came of the mutants: numbers of each kind, and the files of findings."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    written: dict[str, Path] = dataclasses.field(default_factory=dict)


def work(
    seeds: Sequence[Seed],
    seed: int,
    count: int,
    folder: Path,
    *,
    until: float = float("inf"),
    optimize: Optimize = rx.optimize,
) -> Work:
    """Judge the mutants of the sequence that ``seed`` names; one file for each cause."""
    done = Work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(count):
            if time.monotonic() > until:
                break
            base, mutated = mutants.draw(seeds, seed, index)
            done.counts["drawn"] += 1
            try:
                mutant = Mutant(mutated.model, mutated.signature, index)
            except InvalidError as error:
                done.counts[f"dropped by {str(error).partition(':')[0][:20]}"] += 1
                continue
            verdict = judge(mutant, _settings(seed, index), optimize)
            done.counts["judged"] += 1
            done.counts["elements compared"] += verdict.compared
            done.counts["with a norm"] += verdict.norms > 0
            for finding in verdict.findings:
                done.counts[f"finding: {finding.kind}"] += 1
                if (cause := _cause(finding, mutated)) not in done.written:
                    name = f"{re.sub(r'[^a-z]+', '-', finding.kind)}-{seed}-{index}.onnx"
                    done.written[cause] = _write(folder / name, base, mutated, finding)
    return done


def _settings(seed: int, index: int) -> tuple[Setting, ...]:
    """One class for each target, and one of them with a proof."""
    rng = random.Random(f"settings {seed}/{index}")
    classes = [n for n in NUMERICS_ORDER if n != "unclamped"]
    chosen = tuple(Setting(target, rng.choice(classes)) for target in TARGETS)
    return (*chosen, dataclasses.replace(rng.choice(chosen), prove=True))


def _cause(finding: Finding, mutated: Mutated) -> str:
    """Name what findings of one cause have in common: kind, target, and mutations or words."""
    target = finding.setting.split("/")[0]
    if finding.kind in ("exception", "invalid", "proof-failed", "refused"):
        return f"{finding.kind} {re.sub(r'[^ a-zA-Z]+', '', finding.detail)[:60]} {target}"
    return f"{finding.kind} {target} {sorted({step.mutation for step in mutated.steps})}"


def _write(path: Path, base: Seed, mutated: Mutated, finding: Finding) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(mutated.model, path)
    about = {**dataclasses.asdict(finding), "seed": base.name, "mutations": list(mutated.done)}
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path

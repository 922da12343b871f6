"""One process of the fuzzer: mutants are drawn, judged and counted; what is found is written."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from tests.tools.fuzz import mutants
from tests.tools.fuzz.feeds import Signature
from tests.tools.fuzz.judge import (
    JUDGED,
    SETTINGS,
    Finding,
    Optimize,
    Setting,
    Verdict,
    judge,
)
from tests.tools.fuzz.mutants import Mutated, Seed, Step
from tests.tools.fuzz.seeds import architecture_seeds, corpus_seeds, folder_seeds
from tests.tools.fuzz.subject import InvalidError, Mutant
from tests.tools.lib.command import say


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What one process does.

    Attributes:
        seed: names the sequence of mutants; mutant i is the same in every run on the same seeds.
        first, step: this process takes the mutants first, first + step, ...
        count: mutants of the sequence in all.
        until: when to stop, in seconds since the epoch; 0: never.
        every: judge with every setting, and prove with each; otherwise one numerics a target and
            one proof, drawn by chance.
        folder: where findings and the state go.
    """

    seed: int
    first: int
    step: int
    count: int
    until: float
    every: bool
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / f"state-{self.seed}-{self.first}-of-{self.step}.json"


class Counts:
    """What came of the mutants so far; kept in a file, from which a run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next = -1
        self.began = -1
        self.numbers: collections.Counter[str] = collections.Counter()
        self.causes: collections.Counter[str] = collections.Counter()
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.next, self.began = kept["next"], kept["began"]
            self.numbers.update(kept["numbers"])
            self.causes.update(kept["causes"])

    def save(self) -> None:
        text = json.dumps(
            {
                "next": self.next,
                "began": self.began,
                "numbers": dict(sorted(self.numbers.items())),
                "causes": dict(self.causes.most_common()),
            },
            indent=1,
        )
        partial = self.path.with_suffix(".part")
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Which seeds: exports of norm classes whose names have ``only`` in them (None: none), whole
    models by name, the files of a folder."""

    only: str | None
    architectures: tuple[str, ...]
    folder: Path | None

    def seeds(self) -> list[Seed]:
        found = [] if self.only is None else list(corpus_seeds(self.only))
        found += architecture_seeds(self.architectures)
        return [*found, *(folder_seeds(self.folder) if self.folder else ())]


def process(plan: Plan, sources: Sources) -> None:
    """The whole of one process."""
    seeds = sources.seeds()
    if not seeds:
        say("error: there is nothing to mutate")
        sys.exit(2)
    work(plan, seeds)


def work(
    plan: Plan, seeds: Sequence[Seed], optimize: Optimize = rx.optimize
) -> tuple[Counts, list[Path]]:
    """Judge the mutants of a plan, from where the last run stopped.

    Returns the counts and the files of what was found.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    counts = Counts(plan.state)
    written = []
    index = plan.first if counts.next < 0 else counts.next
    if counts.began >= index:  # the last run ended in the middle of this one
        counts.numbers["crashes"] += 1
        counts.causes[f"the process ended at mutant {counts.began}"] += 1
        index = counts.began + plan.step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while index < plan.count and not (plan.until and time.time() > plan.until):
            counts.began = index
            counts.save()
            written += _one(plan, seeds, index, counts, optimize)
            index += plan.step
            counts.next = index
        counts.save()
    return counts, written


def _one(
    plan: Plan, seeds: Sequence[Seed], index: int, counts: Counts, optimize: Optimize
) -> list[Path]:
    seed, mutated = mutants.draw(seeds, plan.seed, index)
    counts.numbers["drawn"] += 1
    try:
        mutant = Mutant(mutated.model, mutated.signature, index)
    except InvalidError as error:
        counts.numbers["dropped"] += 1
        counts.numbers[f"dropped by {str(error).partition(':')[0][:20]}"] += 1
        return []
    settings, proofs = _settings(plan, index)
    verdict = judge(mutant, settings, proofs, optimize)
    _count(counts, seed, mutated, verdict)
    out = []
    for finding in verdict.findings:
        cause = cause_of(finding, mutated)
        counts.numbers[f"finding: {finding.kind}"] += 1
        counts.causes[cause] += 1
        if counts.causes[cause] == 1:
            small, smallest = minimised(seed, mutated, finding, index, optimize)
            out.append(_write(plan, seed, small, smallest, index))
    return out


def _settings(plan: Plan, index: int) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    if plan.every:
        return SETTINGS, SETTINGS
    rng = random.Random(f"settings {plan.seed}/{index}")
    chosen = tuple(Setting(target, rng.choice(JUDGED)) for target in TARGETS)
    return chosen, (rng.choice(chosen),)


def _count(counts: Counts, seed: Seed, mutated: Mutated, verdict: Verdict) -> None:
    numbers = counts.numbers
    numbers["judged"] += 1
    numbers["elements compared"] += verdict.compared
    numbers["elements of which nothing is known"] += verdict.unjudged
    numbers["with a norm"] += verdict.norms > 0
    numbers["with a result that was compared"] += verdict.compared > 0
    numbers["with findings"] += bool(verdict.findings)
    numbers["refused as not provable"] += "not-provable" in verdict.refusals
    if mutated.keeps and seed.norms:
        found = verdict.norms >= seed.norms
        for step in mutated.steps:
            numbers[f"kept by {step.mutation}: {'found' if found else 'missed'}"] += 1


def cause_of(finding: Finding, mutated: Mutated) -> str:
    """What findings of one cause have in common: the kind, the words without numbers and names,
    and the mutations."""
    told = finding.kind in ("exception", "does not load", "invalid", "proof-failed", "refused")
    detail = finding.detail.partition(": ")[2] if finding.kind == "proof-failed" else finding.detail
    words = re.sub(r"['\"(\[].*?['\")\]]|[\d.e+-]+", "", detail)[:100] if told else ""
    names = sorted({step.mutation for step in mutated.steps})
    if told or finding.kind in ("interface", "slow", "input changed"):
        names = []
    return f"{finding.kind} {words} {finding.setting.split('/')[0]} {', '.join(names)}".strip()


def minimised(
    seed: Seed, mutated: Mutated, finding: Finding, number: int, optimize: Optimize
) -> tuple[Mutated, Finding]:
    """The fewest of the mutations after which the same kind of finding is there, in its setting."""
    target, numerics, *proof = finding.setting.split("/")
    setting = Setting(target, numerics)
    steps: tuple[Step, ...] = mutated.steps
    best, words = mutated, finding
    for step in mutated.steps:
        fewer = tuple(s for s in steps if s is not step)
        shorter = mutants.apply(seed, fewer)
        if shorter.steps != fewer:
            continue
        try:
            mutant = Mutant(shorter.model, shorter.signature, number)
            verdict = judge(mutant, (setting,), (setting,) if proof else (), optimize)
        except InvalidError:
            continue
        same = [found for found in verdict.findings if found.kind == finding.kind]
        if same:
            steps, best, words = fewer, shorter, same[0]
    return best, words


def _write(plan: Plan, seed: Seed, mutated: Mutated, finding: Finding, index: int) -> Path:
    kind = re.sub(r"\W+", "-", finding.kind)
    path = plan.folder / f"{kind}-{plan.seed}-{index}.onnx"
    onnx.save(mutated.model, path)
    about: dict[str, Any] = {
        "kind": finding.kind,
        "detail": finding.detail,
        "setting": finding.setting,
        "seed": seed.name,
        "mutations": list(mutated.done),
        "steps": [dataclasses.asdict(step) for step in mutated.steps],
        "feeds": index,
        "inputs": {
            name: [str(dtype), list(dims)]
            for name, (dtype, dims) in mutated.signature.inputs.items()
        },
        "sizes": mutated.signature.sizes,
    }
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path


def replay(path: Path, optimize: Optimize = rx.optimize) -> list[Finding]:
    """What is wrong today with a model that was written as a finding."""
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    inputs = {name: (np.dtype(kind), tuple(dims)) for name, (kind, dims) in about["inputs"].items()}
    signature = Signature(inputs, about["sizes"], {})
    target, numerics, *_ = about["setting"].split("/")
    setting = (Setting(target, numerics),)
    mutant = Mutant(onnx.load(path), signature, about["feeds"])
    return judge(mutant, setting, setting, optimize).findings

"""The results of a benchmark: frozen dataclasses of plain values, for text, JSON and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.system.machine import cores, cpu_name, load_average, memory_gib
from rmsnorm_export.system.shown import Shown

RAW, AGAIN = "raw", "raw again"
"""The model as it was given, and a second session of the very same file."""

BUSY = 2.0
"""Load for each core, when it begins, above which a measurement says nothing of a model."""

Verdict = Literal[
    "baseline", "noise floor", "faster", "slower", "no difference beyond noise", "no verdict"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The time of one variant in one case.

    Attributes:
        variant, provider, case: what was timed.
        rounds: in how many rounds, once in each.
        openings: how often the sessions were opened anew for them.
        median_ms, q1_ms, q3_ms: of its times: median and quartiles.
        ratio: of its time to raw's time in the same round: the median of the openings' medians;
            with one opening, the median of the rounds.
        low, high: distribution-free 95 % interval of that median.
        floor: how far from 1 the interval of ``raw again`` reaches, 1 % at least.
        verdict: ``faster`` and ``slower`` where the interval excludes 1 and the ratio is further
            from 1 than ``floor``; ``no verdict`` on a machine that was busy.
    """

    variant: str
    provider: str
    case: str
    rounds: int
    openings: int
    median_ms: float
    q1_ms: float
    q3_ms: float
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    floor: float = 0.0
    verdict: Verdict = "baseline"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Benchmark(Shown):
    """Outcome of ``bench``.

    Attributes:
        source: path of the model, or a description of where it came from.
        passed: every variant that ran gave right outputs. Speed has no part in it.
        reason: those that gave wrong ones, or "".
        providers: where it was measured: ``cpu``, ``cuda``, ``tensorrt``; of an engine its backend.
        cases: what sets the shapes of the inputs apart, e.g. ``ids=1x128`` -> every input with its
            shape, e.g. ``ids int64 [1, 128]``.
        timings: those that could be timed, by provider and case: of ``raw``, of the targets of
            which something was made, and of ``native``: the file of ``portable``, run with the
            kernels for ONNX Runtime.
        unranked: what could not be timed, e.g. ``ort on cpu``, and why.
        numerics: loosest class of rewrite allowed.
        runtime: with its version and threads, e.g. ``onnxruntime 1.31.1, 2 threads``.
        machine: its processor and load.
        seconds: wall-clock time of it all.
        notes: what the reader should know.
    """

    source: str
    passed: bool
    reason: str
    providers: tuple[str, ...]
    cases: dict[str, tuple[str, ...]]
    timings: tuple[Timing, ...]
    unranked: dict[str, str]
    numerics: str
    runtime: str
    machine: str
    seconds: float
    notes: tuple[str, ...] = ()

    def timed(self, provider: str, case: str) -> tuple[Timing, ...]:
        """Return the timings of one provider and case: raw, raw again, then the fastest first."""
        here = [t for t in self.timings if (t.provider, t.case) == (provider, case)]
        return (*here[:2], *sorted(here[2:], key=lambda t: t.ratio))


def machine(load_before: float) -> str:
    """Describe this machine, at the end of a measurement that began under ``load_before``."""
    load = f"load {load_before:g} before and {load_average()} after"
    return f"{cpu_name()}, {cores()} cores, {memory_gib():g} GiB, {load}"


def outputs_error(results: Mapping[str, Benchmark]) -> VerificationError | None:
    """Return the error of targets with wrong outputs; None where all are right."""
    wrong = [": ".join(filter(None, (k, one.reason))) for k, one in results.items() if one.reason]
    if not wrong:
        return None
    what = "A target gives other outputs than the model, or none that can be compared."
    fix = "see the site by site proof: rmsnorm-export optimize MODEL --target ... --prove"
    return VerificationError(what, found="; ".join(wrong), fix=fix)


def headlines(result: Benchmark) -> list[str]:
    """Return one sentence per provider that says it all."""
    return [f"{provider}: {_headline(result, provider)}" for provider in result.providers]


def _headline(result: Benchmark, provider: str) -> str:
    timings = [timing for timing in result.timings if timing.provider == provider]
    others: dict[str, list[Timing]] = {}
    for timing in timings:
        if timing.variant not in (RAW, AGAIN):
            others.setdefault(timing.variant, []).append(timing)
    if not others:  # an engine, or nothing
        medians = (f"{one.median_ms:.3g} ms at {one.case}" for one in timings)
        return ", ".join(medians) or "nothing could be timed"
    moved, same = [], []
    for name, rows in sorted(others.items(), key=lambda pair: min(t.ratio for t in pair[1])):
        ends = dict.fromkeys(f"{end(t.ratio for t in rows):.2f}" for end in (min, max))
        verdicts = dict.fromkeys(timing.verdict for timing in rows)
        if verdicts.keys() <= {"no difference beyond noise", "no verdict"}:
            same.append(name)
        else:
            takes = "-".join(ends)
            moved.append(f"{name} takes {takes} of raw's time ({', '.join(verdicts)})")
    if any(timing.verdict == "no verdict" for timing in timings):
        return "no verdict, the machine was busy"
    if not moved:
        return f"no measurable gain with {', '.join(same)}"
    return ", ".join(moved) + (f"; no measurable gain with {', '.join(same)}" if same else "")

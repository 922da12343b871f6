"""What a benchmark found: frozen dataclasses of plain values, for text, JSON and HTML."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from typing import Literal

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.printable import plural
from rmsnorm_export.system.machine import cores, cpu_name, load_average, memory_gib
from rmsnorm_export.system.shown import Shown

RAW, AGAIN = "raw", "raw again"
"""The model as it was given, and a second session of the very same file."""

NATIVE = "native"
"""The file of ``portable``, run with the kernels for ONNX Runtime."""

NO_DIFFERENCE: Literal["no difference beyond noise"] = "no difference beyond noise"

VariantKind = Literal["raw", "target"]
Verdict = Literal["baseline", "noise floor", "faster", "slower", "no difference beyond noise"]
Status = Literal["ok", "wrong outputs", "not compared", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One shape of the inputs.

    Attributes:
        label: what sets it apart, e.g. ``ids=1x128``.
        inputs: every input with its shape, e.g. ``ids int64 [1, 128]``.
    """

    label: str
    inputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A file that was to be measured.

    Attributes:
        name: ``raw``, a target, or ``native``.
        kind: which of these it is.
        status: how its making went.
        detail: why it went wrong, or "".
        nodes: in the file, subgraphs included; None where there is no file.
        fused, refused: norms of a target that became one node, and that did not; None for others.
        seconds: to make it.
    """

    name: str
    kind: VariantKind
    status: Status = "ok"
    detail: str = ""
    nodes: int | None = None
    fused: int | None = None
    refused: int | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One output of a variant against raw's, computed without graph optimization.

    Attributes:
        case: label of the shape.
        output: its name.
        passed: within the bound that ``verify`` has for its type.
        reason: why not, or "".
        max_abs: largest difference; NaN where there was nothing to compare.
        bound_abs: largest one allowed.
    """

    case: str
    output: str
    passed: bool
    reason: str
    max_abs: float
    bound_abs: float


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A variant loaded and run once per shape, before it is timed.

    Attributes:
        variant, provider: what ran where.
        status: ``ok``: it is timed.
        detail: why not, or "".
        checks: its outputs.
        load_seconds: to open the session.
    """

    variant: str
    provider: str
    status: Status
    detail: str = ""
    checks: tuple[Check, ...] = ()
    load_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The time of one variant at one shape.

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
            from 1 than ``floor``.
    """

    variant: str
    provider: str
    case: str
    rounds: int
    openings: int
    median_ms: float
    q1_ms: float
    q3_ms: float
    ratio: float
    low: float
    high: float
    floor: float
    verdict: Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What the numbers were measured on; loads are averages over one minute."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    load_before: float | None
    load_after: float | None

    @classmethod
    def here(cls, load_before: float | None) -> Machine:
        """This machine, at the end of a measurement that began under ``load_before``."""
        return cls(
            cpu=cpu_name(),
            cores=cores(),
            memory_gib=memory_gib(),
            system=platform.system(),
            python=platform.python_version(),
            load_before=load_before,
            load_after=load_average(),
        )


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Benchmark(Shown):
    """Outcome of ``bench``.

    Attributes:
        source: path of the model, or a description of where it came from.
        passed: every target that ran gave right outputs. Speed has no part in it.
        reason: the targets that did, or "".
        providers: where it was measured: ``cpu``, ``cuda``, ``tensorrt``.
        cases: shapes of the inputs.
        variants: raw and the targets.
        trials: every variant on every provider.
        timings: those that could be timed, by provider and shape.
        reference: provider of the raw outputs that all others are compared with.
        session: settings of every ONNX Runtime session, equal for all.
        numerics: loosest class of rewrite allowed.
        seed: of the random inputs and of the order within a round.
        machine: and its load before and after.
        versions: of what took part.
        notes: what the reader should know.
        seconds: wall-clock time of it all.
    """

    source: str
    passed: bool
    reason: str
    providers: tuple[str, ...]
    cases: tuple[Case, ...]
    variants: tuple[Variant, ...]
    trials: tuple[Trial, ...]
    timings: tuple[Timing, ...]
    reference: str
    session: dict[str, int | str]
    numerics: str
    seed: int
    machine: Machine
    versions: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    @property
    def threads(self) -> str:
        """``2 threads``; of an engine, which has none, the runtime."""
        count = self.session.get("intra_op_num_threads")
        return str(self.session["runtime"]) if count is None else plural(int(count), "thread")

    def timed(self, provider: str, case: str) -> tuple[Timing, ...]:
        """The timings of one provider and shape: raw, raw again, then the fastest first."""
        here = [t for t in self.timings if (t.provider, t.case) == (provider, case)]
        fixed = [t for t in here if t.variant in (RAW, AGAIN)]
        return (*fixed, *sorted((t for t in here if t not in fixed), key=lambda t: t.ratio))

    def unranked(self) -> tuple[tuple[str, str, str], ...]:
        """Variant and provider (or "") that could not be ranked, and why."""
        unmade = [(v.name, "", _why(v)) for v in self.variants if v.status != "ok"]
        untimed = [(t.variant, t.provider, _why(t)) for t in self.trials if t.status != "ok"]
        return (*unmade, *untimed)


def _why(item: Variant | Trial) -> str:
    return f"{item.status}: {item.detail}" if item.detail else item.status


def outputs_error(results: Mapping[str, Benchmark]) -> VerificationError | None:
    """Return the error of targets with wrong outputs; None where all are right."""
    wrong = [": ".join(filter(None, (k, one.reason))) for k, one in results.items() if one.reason]
    if not wrong:
        return None
    return VerificationError(
        "A target gives other outputs than the model, or none that can be compared.",
        found="; ".join(wrong),
        fix="see the site by site proof: rmsnorm-export optimize MODEL --target ... --prove",
    )


def headlines(result: Benchmark) -> list[str]:
    """One sentence per provider that says it all."""
    return [f"{provider}: {_headline(result, provider)}" for provider in result.providers]


def _headline(result: Benchmark, provider: str) -> str:
    by_name: dict[str, list[Timing]] = {}
    for timing in result.timings:
        if timing.provider == provider and timing.variant not in (RAW, AGAIN):
            by_name.setdefault(timing.variant, []).append(timing)
    if len(result.variants) == 1 and result.timings:
        return ", ".join(f"{t.median_ms:.3g} ms at {t.case}" for t in result.timings)
    if not by_name:
        return "nothing could be timed against raw"
    quiet: list[str] = []
    groups: dict[str, list[str]] = {}
    for name, timings in sorted(by_name.items(), key=lambda pair: min(t.ratio for t in pair[1])):
        kinds = {t.verdict for t in timings}
        if kinds == {NO_DIFFERENCE}:
            quiet.append(name)
            continue
        kind = f"{'faster' if 'faster' in kinds else 'slower'} than raw, whose time is 1"
        if {"faster", "slower"} <= kinds:
            kind = "faster at some shapes, slower at others"
        groups.setdefault(kind, []).append(f"{name} {_ratio_range(timings)}")
    if not groups:
        return f"{NO_DIFFERENCE} between raw and any variant"
    parts = [f"{kind}: {', '.join(groups[kind])}" for kind in sorted(groups)]
    parts += [f"{NO_DIFFERENCE}: {', '.join(quiet)}"] if quiet else []
    return "; ".join(parts)


def _ratio_range(timings: list[Timing]) -> str:
    """``0.36-0.54``, over the shapes where it differs."""
    ratios = [t.ratio for t in timings if t.verdict != NO_DIFFERENCE]
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    where = "" if len(ratios) == len(timings) else f" at {len(ratios)} of {len(timings)} shapes"
    return f"{low if low == high else f'{low}-{high}'}{where}"

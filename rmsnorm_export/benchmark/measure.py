"""``bench``: raw against each target and the peers' optimizers, in ONNX Runtime.

Before they are timed, each variant runs once, in a process of its own: does it run, is it right,
how much memory has it. The reference is the raw file without graph optimization, on the CPU where
that loads it, as in ``verify``: ONNX Runtime fuses norms itself, some of them wrongly. The bounds
are those of ``verify``, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark import sessions
from rmsnorm_export.benchmark.engine import bench_engine
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import (
    AGAIN,
    NATIVE,
    RAW,
    Benchmark,
    Case,
    Check,
    Machine,
    Status,
    Timing,
    Trial,
    Variant,
)
from rmsnorm_export.benchmark.sessions import choose_providers, provider_class, provider_missing
from rmsnorm_export.benchmark.shapes import grid
from rmsnorm_export.benchmark.statistics import Run, run_rounds, timings
from rmsnorm_export.benchmark.variants import count_nodes, make_peer, make_target
from rmsnorm_export.benchmark.worker import PEERS, Outcome, run_worker
from rmsnorm_export.compare.outputs import Bounds, compare_outputs, describe_feeds
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import takes
from rmsnorm_export.printable import one_line
from rmsnorm_export.runtime.inputs import (
    declared_inputs,
    index_limits,
    make_inputs,
    read_arrays,
    write_arrays,
)
from rmsnorm_export.runtime.metrics import NOTHING_COMPARED
from rmsnorm_export.system.machine import cores, load_average, memory_available
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.tensorrt.engine.backends import is_engine

_PACKAGES = ("rmsnorm-export", "onnxruntime", "onnxruntime-gpu", "onnx", "onnx-ir", "numpy")

TIME_LIMIT = 3600.0
"""Seconds to load a model and run it: the TensorRT provider builds its engine in them."""

_NO_PASS = ("wrong outputs", "not compared")
"""What a variant is that runs, and is no pass."""

_BUSY = 0.5
"""Load per core from which on the machine is said to have been busy."""


@takes(BenchOptions)
def bench(model: Source, options: BenchOptions) -> Benchmark:
    """Measure a model against what each target and the peers' optimizers make of it.

    Every file is first loaded and run in a process of its own: its outputs are compared with the
    raw model's, as ``verify`` does, and its peak memory is taken. Those that are right are timed
    together, in rounds, each once per round in random order, their sessions opened anew several
    times, next to a second session of the raw file: what differs no more than that one, or by less
    than 1 %, is called noise. An engine is timed by itself, on a GPU (`bench_engine`).

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; never changed. Or the path
            of an engine.

    Returns:
        The measurements. ``passed`` is False where a target gave wrong outputs; it does not raise.

    Raises:
        InputError: the model cannot be read, or ONNX Runtime does not load or run it.
        UsageError: an option that cannot be used, a dynamic size that is not given, or shapes that
            the model refuses.
        BackendMissingError: ONNX Runtime or a named provider is missing; of an engine its backend,
            or a GPU.
    """
    if isinstance(model, str | os.PathLike) and is_engine(model):
        return bench_engine(model, options)
    if options.generate is not None:
        raise UsageError(
            "Only a folder of graphs generates.",
            found=f"generate {options.generate}, and no folder",
            fix="give the folder that export --task generation made to bench --generate",
        )
    targets, peers = options.targets, options.peers
    chosen, absent = choose_providers(options.providers)
    start, load_before = time.perf_counter(), load_average()
    loaded = load_model(model)
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-bench-") as name, loaded.file() as raw:
        run = Measurement(
            folder=Path(name),
            source=model,
            loaded=loaded,
            raw=str(raw),
            threads=options.threads or cores(),
            progress=options.progress or (lambda *_: None),
            steps=2 + len(targets) + len(peers) + len(chosen) * (1 + len(targets) + len(peers)),
            kernels=sessions.kernels_of(chosen) if options.native else {},
        )
        cases, feeds = run.inputs(options, chosen)
        run.steps += len(chosen) * len(cases)
        variants = [Variant(RAW, "raw", nodes=count_nodes(run.raw))]
        for target in targets:
            run.step(f"optimizing for {target}")
            path = run.place(target)
            variants.append(make_target(model, target, options.numerics, path))
            if target == "portable" and options.native:
                variants.append(dataclasses.replace(variants[-1], name=NATIVE, seconds=0.0))
        for peer in peers:
            run.step(f"running {peer}")
            variants.append(
                make_peer(
                    peer,
                    run.raw,
                    run.place(peer),
                    time_limit=options.peer_seconds,
                    memory_limit=options.peer_memory,
                )
            )
        notes = [f"the provider {name} is not in this ONNX Runtime" for name in absent]
        if options.native and "cuda" in chosen and "cuda" not in run.kernels:
            notes.append(
                "native is not measured on cuda: the CUDA kernels for ONNX Runtime are not built"
            )
        trials, usable = run.trials(variants, chosen, asked=options.providers is not None)
        notes += [
            f"the provider {name} cannot be used here: {trial.detail}"
            for name in chosen
            for trial in trials
            if name not in usable and (trial.variant, trial.provider) == (RAW, name)
        ]
        trials = [trial for trial in trials if trial.provider in usable]
        skipped = len(targets) + len(peers) + len(cases)
        run.steps -= (len(chosen) - len(usable)) * skipped
        measured = [
            timing
            for provider in usable
            for timing in run.time(provider, cases, feeds, trials, options)
        ]
    facts = Machine.here(load_before)
    notes += _reader_notes(facts, trials, run.reference)
    packages = dict.fromkeys((*_PACKAGES, *(PEERS[peer].package for peer in peers)))
    wrong = _wrong_targets(trials, variants)
    return Benchmark(
        source=loaded.description,
        passed=not wrong,
        reason="; ".join(wrong),
        providers=tuple(usable),
        cases=tuple(cases),
        variants=tuple(variants),
        trials=tuple(trials),
        timings=tuple(measured),
        reference=run.reference,
        session=sessions.settings(run.threads),
        numerics=options.numerics,
        seed=options.seed,
        machine=facts,
        versions=versions_of(packages),
        notes=tuple(notes),
        seconds=time.perf_counter() - start,
    )


@dataclasses.dataclass(slots=True)
class Measurement:
    """One call of ``bench``: its files and how far it is.

    Attributes:
        kernels: the library that ``native`` runs with, by the provider.
        labels, feeds: of the shapes, and the file of inputs for each of them.
        reference: provider that computed what is compared with.
    """

    folder: Path
    source: Source
    loaded: LoadedModel
    raw: str
    threads: int
    progress: Progress
    steps: int
    kernels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    done: int = 0
    reference: str = "cpu"
    labels: tuple[str, ...] = ()
    feeds: tuple[Path, ...] = ()

    def step(self, what: str) -> None:
        self.progress(what, self.done, self.steps)
        self.done += 1

    def place(self, variant: str) -> Path:
        """The file of a variant, in a folder of its own."""
        folder = self.folder / variant
        folder.mkdir(exist_ok=True)
        return folder / "model.onnx"

    def path(self, variant: str) -> str:
        if variant in (RAW, AGAIN):
            return self.raw
        return str(self.place("portable" if variant == NATIVE else variant))

    def kernels_of(self, variant: str, provider: str) -> str | None:
        """The library that a variant is run with."""
        return self.kernels[provider] if variant == NATIVE else None

    def inputs(
        self, options: BenchOptions, chosen: Sequence[str]
    ) -> tuple[list[Case], list[dict[str, Array]]]:
        """Shapes, inputs, and the raw model's outputs at them, which are the reference."""
        self.step("reading the model")
        session = self.first_session(chosen)
        declared, limits = declared_inputs(session), index_limits(self.loaded.model)
        del session
        cases, feeds = [], []
        for label, point in grid(declared, options.shapes, options.dims):
            feeds.append(make_inputs(declared, limits, point, seed=options.seed))
            cases.append(Case(label, describe_feeds(feeds[-1])))
        self.feeds = tuple(self.folder / f"feeds.{i}.npz" for i in range(len(feeds)))
        for path, fed in zip(self.feeds, feeds, strict=True):
            write_arrays(path, fed)
        self.labels = tuple(case.label for case in cases)
        self.step("computing the reference")
        ended = self.run(self.raw, self.reference, self.outputs("reference"), optimize=False)
        if ended.status != "ok":
            given = options.shapes or options.dims
            kind = UsageError if given else InputError
            raise kind(
                f"The model does not run at the shapes {', '.join(self.labels)}.",
                found=f"{ended.status}: {ended.detail}",
                fix="give sizes that the model accepts with --shapes, and memory for them",
            )
        return cases, feeds

    def first_session(self, chosen: Sequence[str]) -> Any:
        """Raw without graph optimization, on the first provider that loads it: the reference.

        The CPU if it can be; it lacks kernels in bfloat16.
        """
        failure = ""
        for provider in dict.fromkeys(("cpu", *chosen)):
            try:
                session = sessions.open_session(self.raw, provider, threads=1, optimize=False)
            # The binding raises classes of its own that share no public base.
            except Exception as error:
                failure = failure or one_line(str(error), 400)
                continue
            self.reference = provider
            return session
        raise InputError(
            f"ONNX Runtime does not load the model: {self.loaded.description}",
            found=failure,
            fix="check the model with onnx.checker, or update onnxruntime",
        )

    def trials(
        self, variants: Sequence[Variant], providers: Sequence[str], *, asked: bool
    ) -> tuple[list[Trial], list[str]]:
        """Every variant on every provider, and the providers on which raw runs."""
        trials, usable = [], []
        for provider in providers:
            self.step(f"checking raw on {provider}")
            first = self.trial(RAW, provider)
            trials.append(first)
            if first.status not in ("ok", *_NO_PASS):
                if asked:
                    raise provider_missing(provider, first.detail or first.status)
                continue
            usable.append(provider)
            for variant in variants[1:]:
                self.step(f"checking {variant.name} on {provider}")
                there = variant.name != NATIVE or provider in self.kernels
                if variant.status == "ok" and there:
                    trials.append(self.trial(variant.name, provider))
        return trials, usable

    def outputs(self, name: str) -> list[Path]:
        """A file of outputs for each shape."""
        return [self.folder / f"{name}.{i}.npz" for i in range(len(self.feeds))]

    def run(
        self,
        model: str,
        provider: str,
        outputs: Sequence[Path],
        *,
        optimize: bool,
        kernels: str | None = None,
    ) -> Outcome:
        """Load ``model`` and run it at every shape."""
        request = {
            "action": "trial",
            "model": model,
            "provider": provider,
            "threads": self.threads,
            "optimize": optimize,
            "kernels": kernels,
            "feeds": [str(path) for path in self.feeds],
            "outputs": [str(path) for path in outputs],
        }
        return run_worker(request, folder=self.folder, time_limit=TIME_LIMIT, memory_limit=None)

    def trial(self, variant: str, provider: str) -> Trial:
        """Load and run a variant, and compare its outputs with the reference."""
        outputs = self.outputs("trial")
        kernels = self.kernels_of(variant, provider)
        ended = self.run(self.path(variant), provider, outputs, optimize=True, kernels=kernels)
        if ended.status != "ok":
            return Trial(variant, provider, ended.status, ended.detail)
        if not ended.result["on"]:
            name = provider_class(provider)
            detail = f"ONNX Runtime cannot use {name} here and fell back to the CPU"
            return Trial(variant, provider, "failed", detail)
        checks = [
            check
            for label, mine, expected in zip(
                self.labels, outputs, self.outputs("reference"), strict=True
            )
            for check in check_outputs(label, read_arrays(mine), read_arrays(expected))
        ]
        wrong = [check for check in checks if not check.passed]
        nothing = all(check.reason in NOTHING_COMPARED for check in wrong)
        status: Status = "ok" if not wrong else "not compared" if nothing else "wrong outputs"
        detail = "" if not wrong else f"{wrong[0].output} at {wrong[0].case}: {wrong[0].reason}"
        if len(wrong) > 1:
            detail += f" (and {len(wrong) - 1} more)"
        return Trial(
            variant,
            provider,
            status,
            detail,
            tuple(checks),
            float(ended.result["load_seconds"]),
            *(_mib(ended.result[key]) for key in ("base", "peak")),
        )

    def time(
        self,
        provider: str,
        cases: Sequence[Case],
        feeds: Sequence[Mapping[str, Array]],
        trials: Sequence[Trial],
        options: BenchOptions,
    ) -> Iterator[Timing]:
        """All right variants of one provider, in one set of rounds for each shape."""
        right = {t.variant: t for t in trials if t.provider == provider and t.status == "ok"}
        names = [RAW, AGAIN, *(name for name in right if name != RAW)]
        if len(names) == 2:
            return
        if provider == "cpu":
            check_memory(list(right.values()))
        for case, fed in zip(cases, feeds, strict=True):
            self.step(f"timing on {provider} at {case.label}")
            opens = [functools.partial(self.open, name, provider, fed) for name in names]
            try:
                times = run_rounds(
                    opens, seconds=options.seconds, rounds=options.rounds, seed=options.seed
                )
            # The binding raises classes of its own; each ran alone, so it is their number.
            except Exception as error:
                raise UsageError(
                    f"The variants cannot be timed together on {provider}.",
                    found=one_line(str(error), 300),
                    fix="name fewer of --targets and --peers, or give smaller --shapes",
                ) from error
            yield from timings(names, times, provider, case.label)

    def open(self, variant: str, provider: str, feeds: Mapping[str, Array]) -> Run:
        """A new session of a variant, to be run on ``feeds``."""
        session = sessions.open_session(
            self.path(variant),
            provider,
            threads=self.threads,
            kernels=self.kernels_of(variant, provider),
        )
        return sessions.runner(session, feeds)


def _wrong_targets(trials: Sequence[Trial], variants: Sequence[Variant]) -> list[str]:
    targets = {variant.name for variant in variants if variant.kind == "target"}
    return [
        f"{trial.variant} on {trial.provider}: {trial.detail}"
        for trial in trials
        if trial.variant in targets and trial.status in _NO_PASS
    ]


def _reader_notes(facts: Machine, trials: Sequence[Trial], where: str) -> Iterator[str]:
    load = facts.load_before
    if load is not None and load > _BUSY * facts.cores:
        yield (
            f"the machine was busy before the measurement began: load {load:g} on"
            f" {facts.cores} cores; intervals are wider for it"
        )
    for trial in trials:
        if trial.variant == RAW and trial.status == "wrong outputs":
            yield (
                f"raw itself differs on {trial.provider} from raw without graph optimization"
                f" on {where}: {trial.detail}"
            )
        if trial.variant == RAW and trial.status == "not compared":
            yield f"nothing could be compared on {trial.provider}: {trial.detail}"
    if where != "cpu":
        yield f"the CPU does not load raw: outputs are compared with those of raw on {where}"
    if any(trial.provider != "cpu" for trial in trials):
        yield "times hold the copies of inputs and outputs between host and device"


def check_outputs(
    case: str, computed: Mapping[str, Array], expected: Mapping[str, Array]
) -> list[Check]:
    """Every output that the raw model has, as ``verify`` compares it."""
    fitting = {
        name: array
        for name, array in expected.items()
        if name in computed
        and (computed[name].dtype, computed[name].shape) == (array.dtype, array.shape)
    }
    compared = {one.name: one for one in compare_outputs(fitting, computed, Bounds())}
    checks = []
    for name, array in expected.items():
        one, mine = compared.get(name), computed.get(name)
        if one is not None:
            far, bound = one.metrics.max_abs, one.bound_abs
            checks.append(Check(case, name, one.passed, one.reason, far, bound))
            continue
        reason = "the output is missing"
        if mine is not None:
            reason = f"{mine.dtype} {list(mine.shape)}, not {array.dtype} {list(array.shape)}"
        checks.append(Check(case, name, False, reason, math.nan, math.nan))
    return checks


def _mib(size: int | None) -> float | None:
    return None if size is None else round(size / 2**20, 1)


def check_memory(trials: Sequence[Trial]) -> None:
    """All sessions are open at once, raw's twice.

    Raises:
        UsageError: they do not fit into the memory that is free.
    """
    sizes = [
        trial.peak_mib - trial.base_mib
        for trial in (*trials[:1], *trials)
        if trial.peak_mib is not None and trial.base_mib is not None
    ]
    free = memory_available()
    if free is not None and sum(sizes) * 2**20 > free:
        raise UsageError(
            "The variants do not fit into memory together.",
            found=f"{sum(sizes) / 1024:.1f} GiB for {len(sizes)} sessions,"
            f" {free / 2**30:.1f} GiB are free",
            fix="name fewer of --targets and --peers, or give smaller --shapes",
        )

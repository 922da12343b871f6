"""``bench``: raw against what each target makes of it, in ONNX Runtime.

Before they are timed, each variant runs once at every shape, and its outputs are compared. The
reference is the raw file without graph optimization, on the CPU where that loads it, as in
``verify``: ONNX Runtime fuses norms itself, some of them wrongly. The bounds are those of
``verify``, too.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark import sessions
from rmsnorm_export.benchmark.checks import check_outputs, count_nodes, judged
from rmsnorm_export.benchmark.engine import bench_engine
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import (
    AGAIN,
    NATIVE,
    RAW,
    Benchmark,
    Case,
    Machine,
    Timing,
    Trial,
    Variant,
)
from rmsnorm_export.benchmark.shapes import grid
from rmsnorm_export.benchmark.statistics import Run, run_rounds, timings
from rmsnorm_export.compare.outputs import describe_feeds
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.printable import one_line
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.runtime.inputs import declared_inputs, index_limits, make_inputs
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.system.machine import cores, load_average
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.tensorrt.engine.backends import is_engine

_PACKAGES = ("rmsnorm-export", "onnxruntime", "onnxruntime-gpu", "onnx", "onnx-ir", "numpy")

_NO_PASS = ("wrong outputs", "not compared")
"""Statuses of a variant that runs, and is no pass."""

_BUSY = 0.5
"""Load per core above which the machine counts as busy."""

Feeds = Mapping[str, Array]


@takes(BenchOptions)
def bench(model: Source, options: BenchOptions) -> Benchmark:
    """Measure a model against what each target makes of it.

    The outputs of every variant are compared with the raw model's, as ``verify`` does. Those that
    are right are timed together, in rounds, each once per round in random order, their sessions
    opened anew several times, next to a second session of the raw file: what differs no more than
    that one, or by less than 1 %, is called noise. An engine is timed by itself, on a GPU.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; never changed. Or the path
            of an engine; or with ``generate`` of a folder of prefill and decode.

    Returns:
        The measurements. ``passed`` is False where a target gave wrong outputs; it does not raise.

    Raises:
        InputError: the model cannot be read, or ONNX Runtime does not load or run it.
        UsageError: an option that cannot be used, a dynamic size that is not given, or shapes that
            the model refuses.
        BackendMissingError: ONNX Runtime or a named provider is missing; of an engine its backend,
            or a GPU.
    """
    if options.generate and isinstance(model, str | os.PathLike) and Path(model).is_dir():
        from rmsnorm_export.benchmark.generation import bench_generation

        generated: Benchmark = bench_generation(model, **keywords(options))
        return generated
    return bench_model(model, options)


def bench_model(model: Source, options: BenchOptions) -> Benchmark:
    """Measure one file or model, see `bench`."""
    if isinstance(model, str | os.PathLike) and is_engine(model):
        return bench_engine(model, options)
    if options.generate is not None:
        raise UsageError(
            "Only a folder of graphs can generate.",
            found=f"generate {options.generate}, and no folder",
            fix="give the folder that export --task generation made to bench --generate",
        )
    start, load_before = time.perf_counter(), load_average()
    chosen, absent = sessions.choose_providers(options.providers)
    loaded = load_model(model)
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-bench-") as name, loaded.file() as raw:
        kernels = sessions.kernels_of(chosen) if options.native else {}
        run = Measurement(Path(name), loaded, str(raw), options, kernels)
        run.steps = 1 + len(options.targets) + 2 * len(chosen)
        run.prepare(chosen)
        run.make(model)
        notes = [f"the provider {one} is not in this ONNX Runtime" for one in absent]
        if options.native and "cuda" in chosen and "cuda" not in kernels:
            notes.append(
                "native is not measured on cuda: the CUDA kernels for ONNX Runtime are not built"
            )
        trials, measured, usable = list[Trial](), list[Timing](), list[str]()
        for provider in chosen:
            run.step(f"checking on {provider}")
            here = run.trials(provider)
            if here[0].status not in ("ok", *_NO_PASS):
                if options.providers is not None:
                    raise sessions.provider_missing(provider, here[0].detail)
                notes.append(f"the provider {provider} cannot be used here: {here[0].detail}")
                continue
            usable.append(provider)
            trials += here
            run.step(f"timing on {provider}")
            measured += run.time(provider, here)
    facts = Machine.here(load_before)
    notes += _reader_notes(facts, trials, run.reference)
    wrong = [
        f"{trial.variant} on {trial.provider}: {trial.detail}"
        for trial in trials
        if trial.variant != RAW and trial.status in _NO_PASS
    ]
    return Benchmark(
        source=loaded.description,
        passed=not wrong,
        reason="; ".join(wrong),
        providers=tuple(usable),
        cases=tuple(run.cases),
        variants=tuple(run.variants),
        trials=tuple(trials),
        timings=tuple(measured),
        reference=run.reference,
        session=sessions.settings(run.threads),
        numerics=options.numerics,
        seed=options.seed,
        machine=facts,
        versions=versions_of(_PACKAGES),
        notes=tuple(notes),
        seconds=time.perf_counter() - start,
    )


@dataclasses.dataclass(slots=True)
class Measurement:
    """One call of ``bench``: its files and how far it is.

    Attributes:
        kernels: the library that ``native`` runs with, by the provider.
        cases, feeds, expected: of each shape: its name, the inputs, the reference's outputs.
        reference: provider that computed what is compared with.
    """

    folder: Path
    loaded: LoadedModel
    raw: str
    options: BenchOptions
    kernels: Mapping[str, str]
    steps: int = 0
    done: int = 0
    reference: str = "cpu"
    variants: list[Variant] = dataclasses.field(default_factory=list)
    cases: list[Case] = dataclasses.field(default_factory=list)
    feeds: list[Feeds] = dataclasses.field(default_factory=list)
    expected: list[Feeds] = dataclasses.field(default_factory=list)

    @property
    def threads(self) -> int:
        return self.options.threads or cores()

    def step(self, what: str) -> None:
        if callable(self.options.progress):
            self.options.progress(what, self.done, self.steps)
        self.done += 1

    def path(self, variant: str) -> str:
        if variant in (RAW, AGAIN):
            return self.raw
        return str(self.folder / ("portable" if variant == NATIVE else variant) / "model.onnx")

    def prepare(self, chosen: Sequence[str]) -> None:
        """Make inputs, and compute the reference at them."""
        self.step("computing the reference")
        options, session = self.options, self._first_session(chosen)
        declared, limits = declared_inputs(session), index_limits(self.loaded.model)
        try:
            for label, point in grid(declared, options.shapes, options.dims):
                fed = make_inputs(declared, limits, point, seed=options.seed)
                self.cases.append(Case(label, describe_feeds(fed)))
                self.feeds.append(fed)
                self.expected.append(run_session(session, fed))
        except Error as error:
            if isinstance(error, UsageError):
                raise
            kind = UsageError if options.shapes or options.dims else InputError
            raise kind(
                f"The model does not run at the shapes {self.cases[-1].label}.",
                found=error.found,
                fix="give sizes that the model accepts with --shapes, and memory for them",
            ) from error

    def _first_session(self, chosen: Sequence[str]) -> Any:
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

    def make(self, source: Source) -> None:
        """Write what each target makes of the model."""
        self.variants.append(Variant(RAW, "raw", nodes=count_nodes(self.raw)))
        for target in self.options.targets:
            self.step(f"optimizing for {target}")
            self.variants.append(make_target(source, target, self.options, self.path(target)))
            if target == "portable" and self.options.native:
                native = dataclasses.replace(self.variants[-1], name=NATIVE, seconds=0.0)
                self.variants.append(native)

    def trials(self, provider: str) -> list[Trial]:
        """Run every variant once at every shape; where raw fails, only that."""
        trials = [self.trial(RAW, provider)]
        if trials[0].status in ("ok", *_NO_PASS):
            trials += [
                self.trial(variant.name, provider)
                for variant in self.variants[1:]
                if variant.status == "ok" and (variant.name != NATIVE or provider in self.kernels)
            ]
        return trials

    def trial(self, variant: str, provider: str) -> Trial:
        """Load and run a variant, and compare its outputs with the reference."""
        start = time.perf_counter()
        try:
            session = self.session(variant, provider)
            seconds = time.perf_counter() - start
            if not sessions.is_on(session, provider):
                name = sessions.provider_class(provider)
                detail = f"ONNX Runtime cannot use {name} here and fell back to the CPU"
                return Trial(variant, provider, "failed", detail)
            checks = [
                check
                for case, fed, expected in zip(self.cases, self.feeds, self.expected, strict=True)
                for check in check_outputs(case.label, run_session(session, fed), expected)
            ]
        # The binding raises classes of its own that share no public base.
        except Exception as error:
            detail = error.found if isinstance(error, Error) else str(error)
            return Trial(variant, provider, "failed", one_line(detail, 300))
        status, detail = judged(checks)
        return Trial(variant, provider, status, detail, tuple(checks), seconds)

    def session(self, variant: str, provider: str) -> Any:
        kernels = self.kernels[provider] if variant == NATIVE else None
        return sessions.open_session(
            self.path(variant), provider, threads=self.threads, kernels=kernels
        )

    def time(self, provider: str, trials: Sequence[Trial]) -> Iterator[Timing]:
        """Time all right variants of one provider, in one set of rounds for each shape."""
        names = [RAW, AGAIN, *(t.variant for t in trials[1:] if t.status == "ok")]
        if len(names) == 2 or trials[0].status != "ok":
            return
        options = self.options
        for case, fed in zip(self.cases, self.feeds, strict=True):
            opens = [functools.partial(self._open, name, provider, fed) for name in names]
            try:
                times = run_rounds(
                    opens, seconds=options.seconds, rounds=options.rounds, seed=options.seed
                )
            # The binding raises classes of its own; each ran alone, so it is their number.
            except Exception as error:
                raise UsageError(
                    f"The variants cannot be timed together on {provider}.",
                    found=one_line(str(error), 300),
                    fix="name fewer of --target, or give smaller --shapes",
                ) from error
            yield from timings(names, times, provider, case.label)

    def _open(self, variant: str, provider: str, feeds: Feeds) -> Run:
        return sessions.runner(self.session(variant, provider), feeds)


def make_target(source: Source, target: Target, options: BenchOptions, path: str) -> Variant:
    """Optimize ``source`` for ``target`` and write it to ``path``."""
    start = time.perf_counter()
    try:
        result = optimize(source, target=target, numerics=options.numerics)
        Path(path).parent.mkdir()
        result.save(path)
    except Error as error:
        reason = one_line(": ".join(filter(None, (error.what, error.found))), 300)
        return Variant(target, "target", "failed", reason, seconds=time.perf_counter() - start)
    report = result.report
    return Variant(
        target,
        "target",
        nodes=report.nodes_after,
        fused=len(report.fused) + len(report.kept),
        refused=len(report.unfused),
        seconds=time.perf_counter() - start,
    )


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

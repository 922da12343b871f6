"""``bench`` for one model: raw against what each target makes of it, in ONNX Runtime.

Every variant is checked against the reference, then those that are right are timed together. The
reference is the raw model without graph optimization, on the CPU where that loads it, as in
``verify``: ONNX Runtime fuses norms itself, some of them wrongly. The bounds are those of
``verify``, too.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rmsnorm_export.api import optimize
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import AGAIN, BUSY, RAW, Benchmark, Timing, machine
from rmsnorm_export.benchmark.statistics import Run, run_rounds, timings
from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.outputs import Bounds, compare_outputs, describe_feeds, pair_outputs
from rmsnorm_export.errors import (
    BackendMissingError,
    Error,
    InputError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, serialize
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, make_inputs
from rmsnorm_export.runtime.session import (
    Device,
    is_norm,
    load_session,
    onnxruntime,
    open_session,
    run_session,
)
from rmsnorm_export.runtime.sizes import (
    POINTS,
    Declared,
    Shape,
    input_shapes,
    shape_text,
    size_points,
)
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.machine import cores, load_average
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library

NATIVE = "native"
GPU = "onnxruntime-gpu"
"""What is written for the CUDA provider: of half types a residual sum is in the node."""
DEFAULT_SIZES = ((1, 16), (1, 128), (4, 128))
"""Of the first named dimension and of all others, a batch and a length: the default sizes."""

_FAILED = "failed: "
_FUSED_BEFORE = (
    "norms of this model are one node already: to measure the gain, compare with what "
    "optimize --target plain writes of it"
)
_CPU: Device = "cpu"

Feeds = Mapping[str, Array]


def bench_model(model: Source, options: BenchOptions) -> Benchmark:
    """Measure one file or model, see `bench`."""
    start, load_before = time.perf_counter(), load_average()
    present = onnxruntime().get_available_providers()
    both: tuple[Device, ...] = ("cpu", "cuda") if CUDA in present else ("cpu",)
    providers = options.providers or both
    if options.native:
        onnxruntime_library(cuda="cpu" not in providers)
    run = Measurement(load_model(model), options, busy=load_before > BUSY * cores())
    run.prepare(providers)
    for target in (*options.targets, *([GPU] if "cuda" in providers else [])):
        run.tell(f"optimizing for {target}")
        run.make(target)
    for provider in providers:
        run.measure(provider)
    if not run.usable:
        raise run.not_run(next(iter(run.unranked.values())).removeprefix(_FAILED))
    wrong = [
        f"{name}: {why}"
        for name, why in run.unranked.items()
        if not why.startswith(_FAILED) and not name.startswith(f"{RAW} on ")
    ]
    return Benchmark(
        source=run.loaded.description,
        passed=not wrong,
        reason="; ".join(wrong),
        providers=tuple(run.usable),
        cases={label: describe_feeds(fed) for label, fed in run.feeds.items()},
        timings=tuple(run.timings),
        unranked=run.unranked,
        numerics=options.numerics,
        runtime=f"onnxruntime {onnxruntime().__version__}, {plural(run.threads, 'thread')}",
        machine=machine(load_before),
        notes=tuple(run.notes(load_before)),
        seconds=time.perf_counter() - start,
    )


@dataclasses.dataclass(slots=True)
class Measurement:
    """One call of ``bench``, and how far it is.

    Attributes:
        loaded, options: the model, and how it is measured.
        busy: the machine is, so that times say nothing.
        feeds, expected: inputs and outputs of the reference, by the label of the case.
        contents: of raw and what was made of it, serialised; external data is the model's.
        timings, usable, unranked: as in ``Benchmark``.
        refused: the usual cases that the model does not run, and why.
    """

    loaded: LoadedModel
    options: BenchOptions
    busy: bool = False
    feeds: dict[str, Feeds] = dataclasses.field(default_factory=dict)
    expected: dict[str, Feeds] = dataclasses.field(default_factory=dict)
    contents: dict[str, bytes] = dataclasses.field(default_factory=dict)
    timings: list[Timing] = dataclasses.field(default_factory=list)
    usable: list[str] = dataclasses.field(default_factory=list)
    unranked: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Threads of every session."""
        return self.options.threads or cores()

    def tell(self, what: str) -> None:
        """Show the work at hand."""
        if callable(self.options.progress):
            self.options.progress(what, 0, 1)

    def notes(self, load: float) -> Iterator[str]:
        """Yield what the reader should know; ``load`` is that before it began."""
        if self.busy:
            yield f"a load of {load:g} on {plural(cores(), 'core')}: measure again when it is idle"
        for label, why in self.refused.items():
            yield f"not measured at {label}, which the model does not run: {one_line(why, 300)}"
        if any(map(is_norm, self.loaded.model.graph.all_nodes())):
            yield _FUSED_BEFORE

    def session(
        self,
        variant: str,
        provider: Device,
        *,
        optimize: bool = True,
        opened: Callable[..., Any] = open_session,
    ) -> Any:
        """Open a variant.

        Args:
            opened: what opens it.

        Raises:
            Error: ONNX Runtime does not load it, or lacks the provider or the kernels.
        """
        native = variant == NATIVE
        return opened(
            self.contents[RAW if variant == AGAIN else variant],
            optimize=optimize,
            threads=self.threads if optimize else 1,
            external_folder=self.loaded.folder,
            device=provider,
            kernels=onnxruntime_library(cuda=provider == "cuda") if native else None,
        )

    def prepare(self, providers: Sequence[Device]) -> None:
        """Make inputs, and compute the reference at them."""
        self.tell("computing the reference")
        self.contents[RAW] = self.loaded.to_bytes()
        options, session = self.options, self._reference(providers)
        declared, limits = graph_inputs(self.loaded.model), index_limits(self.loaded.model)
        for label, point in grid(declared, options).items():
            feeds = make_inputs(declared, limits, point, seed=options.seed)
            try:
                self.expected[label] = run_session(session, feeds)
                self.feeds[label] = feeds
            except Error as error:
                self.refused[label] = error.found
        if self.refused and (options.shapes or options.dims or not self.feeds):
            kind = UsageError if options.shapes or options.dims else InputError
            label, found = next(iter(self.refused.items()))
            what = f"The model does not run at the shapes {label}."
            fix = "give sizes that the model accepts with --shapes, and memory for them"
            raise kind(what, found=found, fix=fix)

    def _reference(self, providers: Sequence[Device]) -> Any:
        """Open raw without graph optimization, on the first provider that loads it.

        The CPU if it can be; it lacks kernels in bfloat16.
        """
        failures = []
        for provider in dict.fromkeys((_CPU, *providers)):
            try:
                return self.session(RAW, provider, optimize=False)
            except Error as error:
                failures.append(error.found)
        raise self.not_run(failures[0])

    def not_run(self, found: str) -> InputError:
        """Return the error for a model that cannot be measured."""
        what = f"ONNX Runtime does not load or run the model: {self.loaded.description}"
        fix = "check the model with onnx.checker, or take another release of onnxruntime"
        return InputError(what, found=found, fix=fix)

    def make(self, target: str) -> None:
        """Optimize the model for a target, or for ``GPU``."""
        how: dict[str, Any] = {"runtime": GPU} if target == GPU else {"target": target}
        try:
            result = optimize(self.loaded.model, **how, numerics=self.options.numerics)
            self.contents[target] = serialize(result.model)
        except Error as error:
            self.unranked[target] = one_line(f"{_FAILED}{error.what} {error.found}", 300)
            return
        if target == "portable" and self.options.native:
            self.contents[NATIVE] = self.contents[target]

    def measure(self, provider: Device) -> None:
        """Check every variant on a provider, and time those that are right.

        Raises:
            Error: it was named, and cannot be used here.
        """
        right = []
        for variant in self.contents:
            self.tell(f"checking {variant} on {provider}")
            if why := self._problem(variant, provider):
                self.unranked[f"{variant} on {provider}"] = why
            else:
                right.append(variant)
            if variant == RAW and why.startswith(_FAILED):
                return
        self.usable.append(provider)
        if right[:1] == [RAW] and right[1:]:
            self.timings += self._time(provider, [RAW, AGAIN, *right[1:]])

    def _problem(self, variant: str, provider: Device) -> str:
        """Run a variant once in every case; return what is wrong with it, or ""."""
        try:
            session = self.session(variant, provider)
            outputs = {case: run_session(session, fed) for case, fed in self.feeds.items()}
        except Error as error:
            if variant == RAW and self.options.providers is not None:
                missing = isinstance(error, BackendMissingError)
                raise error if missing else self.not_run(error.found) from error
            return one_line(f"{_FAILED}{error.found}", 300)
        wrong = (wrong_output(case, outputs[case], self.expected[case]) for case in outputs)
        return next(filter(None, wrong), "")

    def _time(self, provider: Device, names: Sequence[str]) -> Iterator[Timing]:
        """Time variants together, in one set of rounds for each case."""
        options = self.options
        for case, fed in self.feeds.items():
            self.tell(f"timing {case} on {provider}")
            opens = [functools.partial(self._opened, name, provider, fed) for name in names]
            times = run_rounds(opens, seconds=options.seconds, seed=options.seed)
            yield from timings(names, times, provider, case, busy=self.busy)

    def _opened(self, variant: str, provider: Device, feeds: Feeds) -> Run:
        """Open a variant; return one run of it, with as little around it as there can be."""
        session = self.session(variant, provider, opened=load_session)
        own = dict(feeds)
        if any("bfloat16" in item.type for item in (*session.get_inputs(), *session.get_outputs())):
            return lambda: run_session(session, own)
        return lambda: session.run(None, own)


def grid(declared: Mapping[str, Declared], options: BenchOptions) -> dict[str, Mapping[str, Shape]]:
    """Return the shape of every input for each point where it is measured, by its label.

    Raises:
        UsageError: what is given cannot be read or does not fit the model; a dynamic size is not
            known.
    """
    if options.shapes or options.dims:
        return dict(size_points(declared, options.shapes, options.dims, POINTS))
    points: dict[str, Mapping[str, Shape]] = {}
    for sizes in DEFAULT_SIZES:
        shapes = input_shapes(declared, sizes=sizes)
        first = next(iter(shapes), "no input")
        points[f"{first}={shape_text(shapes.get(first, ()))}"] = shapes
    return points


def wrong_output(case: str, computed: Feeds, expected: Feeds) -> str:
    """Return the first output that is not as ``verify`` would have it, and why; or ""."""
    try:
        outputs = compare_outputs(*pair_outputs(Answer(expected), Answer(computed)), Bounds())
    except VerificationError as error:
        return f"{error.what} {error.found} at {case}"
    return next((f"{one.name} at {case}: {one.reason}" for one in outputs if not one.passed), "")

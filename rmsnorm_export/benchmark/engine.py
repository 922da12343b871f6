"""``bench`` for engines: how long one takes at the sizes that it was built for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import RAW, Benchmark, Case, Machine, Timing, Variant
from rmsnorm_export.benchmark.shapes import grid
from rmsnorm_export.benchmark.statistics import quartiles
from rmsnorm_export.compare.backend import Chosen
from rmsnorm_export.compare.engine import EngineFile, profile_for
from rmsnorm_export.compare.outputs import describe_feeds
from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.inputs import make_inputs
from rmsnorm_export.runtime.sizes import shape_text
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.machine import load_average
from rmsnorm_export.system.packages import versions_of

_LEAST_ROUNDS = 20
_TOOLS = ("rmsnorm-export", "tensorrt", "tensorrt-rtx", "polygraphy", "numpy")


def bench_engine(engine: StrPath, options: BenchOptions) -> Benchmark:
    """Time an engine, its inputs and outputs on the GPU, from launch to end.

    Its cases are the usual sizes of its profiles, or those of ``shapes`` and ``dims``. There is
    nothing to compare it with: two engines are compared by two calls on a machine that does nothing
    else. An output that is bound to an input's buffer, as a cache can be, is written there.

    Args:
        engine: path of the file.
        options: those of `bench`; targets, providers and threads say nothing here.

    Returns:
        The times, with the engine as the only variant.

    Raises:
        InputError: it is no engine that can be used here.
        UsageError: ``generate`` is given, or sizes that the engine was not built for.
        BackendMissingError: its backend, Polygraphy or a GPU is missing.
        VerificationError: it does not run.
    """
    start, load_before = time.perf_counter(), load_average()
    if options.generate is not None:
        raise UsageError(
            "Engines are timed by themselves, and generate nothing here.",
            found=f"generate {options.generate}, and an engine",
            fix="omit it, or give the folder of graphs",
        )
    path = Path(os.path.abspath(engine))
    opened = EngineFile.open(Chosen(path, "engine", "auto", "auto", True))
    declared = opened.declared()
    if options.shapes or options.dims:
        points = grid(declared, options.shapes, options.dims)
    else:
        usual = [{one.name: one.opt for one in profile.inputs} for profile in opened.profiles]
        points = [(", ".join(f"{k}={shape_text(v)}" for k, v in one.items()), one) for one in usual]
    cases, timings = list[Case](), list[Timing]()
    tell = options.progress if callable(options.progress) else None
    for label, point in points:
        feeds = make_inputs(declared, {}, point, seed=options.seed)
        cases.append(Case(label, describe_feeds(feeds)))
        if tell is not None:
            tell(f"timing {label}", len(timings), len(points))
        times = opened.engine.measure(
            feeds,
            profile_for(opened.profiles, feeds),
            least=options.rounds or _LEAST_ROUNDS,
            seconds=0.0 if options.rounds else options.seconds,
        )
        low, median, high = (1000 * one for one in quartiles(times))
        timings.append(
            Timing(RAW, opened.name, label, len(times), 1, median, low, high, 1.0, 1.0, 1.0, 0.0,
                   "baseline")
        )  # fmt: skip
    return Benchmark(
        source=str(path),
        passed=True,
        reason="",
        providers=(opened.name,),
        cases=tuple(cases),
        variants=(Variant(RAW, "raw"),),
        trials=(),
        timings=tuple(timings),
        reference=opened.name,
        session={"runtime": opened.runtime},
        numerics=options.numerics,
        seed=options.seed,
        machine=Machine.here(load_before),
        versions=versions_of(_TOOLS),
        notes=("an engine by itself: nothing was compared",),
        seconds=time.perf_counter() - start,
    )

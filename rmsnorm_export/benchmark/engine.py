"""``bench`` for engines: how long one takes at the sizes that it was built for."""

from __future__ import annotations

import time

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import RAW, Benchmark, Timing, Variant, machine
from rmsnorm_export.benchmark.statistics import FEWEST, quartiles
from rmsnorm_export.compare.backend import Chosen
from rmsnorm_export.compare.engine import Engine
from rmsnorm_export.compare.outputs import describe_feeds
from rmsnorm_export.runtime.inputs import make_inputs
from rmsnorm_export.runtime.sizes import POINTS, shape_text, size_points
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.machine import load_average
from rmsnorm_export.system.packages import versions_of

_TOOLS = ("rmsnorm-export", "tensorrt", "tensorrt-rtx", "polygraphy", "numpy")


def bench_engine(path: StrPath, options: BenchOptions) -> Benchmark:
    """Time an engine, its inputs and outputs on the GPU, from launch to end.

    Its cases are the usual sizes of its profiles, or those of ``shapes`` and ``dims``. There is
    nothing to compare it with: two engines are compared by two calls on a machine that does nothing
    else. An output that is bound to an input's buffer, as a cache can be, is written there.

    Raises:
        InputError: it is no engine that can be used here, or it does not run.
        UsageError: sizes that the engine was not built for.
        BackendMissingError: its backend, Polygraphy or a GPU is missing.
    """
    start, load_before = time.perf_counter(), load_average()
    engine = Engine.open(Chosen(Engine, path, "engine"))
    declared = engine.declared()
    if options.shapes or options.dims:
        points = size_points(declared, options.shapes, options.dims, POINTS)
    else:
        usual = [{one.name: one.opt for one in each.inputs} for each in engine.record.profiles]
        points = [(", ".join(f"{k}={shape_text(v)}" for k, v in one.items()), one) for one in usual]
    cases, timings = dict[str, tuple[str, ...]](), list[Timing]()
    for label, point in points:
        feeds = make_inputs(declared, {}, point, seed=options.seed)
        cases[label] = describe_feeds(feeds)
        times = engine.measure(feeds, least=FEWEST, seconds=options.seconds)
        low, median, high = (1000 * one for one in quartiles(times))
        timings.append(Timing(RAW, engine.name, label, len(times), 1, median, low, high))
    return Benchmark(
        source=str(engine.path),
        passed=True,
        reason="",
        providers=(engine.name,),
        cases=cases,
        variants=(Variant(RAW),),
        timings=tuple(timings),
        unranked={},
        numerics=options.numerics,
        runtime=engine.runtime,
        machine=machine(load_before),
        versions=versions_of(_TOOLS),
        notes=("an engine by itself: nothing was compared",),
        seconds=time.perf_counter() - start,
    )

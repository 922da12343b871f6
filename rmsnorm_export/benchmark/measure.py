"""``bench`` as users call it: a model, an engine, or a folder of them."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from rmsnorm_export.benchmark.model import bench_model
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import RAW, Benchmark, Timing, machine
from rmsnorm_export.benchmark.statistics import FEWEST, quartiles_ms
from rmsnorm_export.compare.engine import Engine
from rmsnorm_export.compare.outputs import describe_feeds
from rmsnorm_export.decoder.bundle import Components, open_folder
from rmsnorm_export.graph.load import Source
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.inputs import make_inputs
from rmsnorm_export.runtime.sizes import POINTS, shape_text, size_points
from rmsnorm_export.system.machine import load_average
from rmsnorm_export.tensorrt.engine.backends import engines_in, is_engine


@takes(BenchOptions)
def bench(model: Source, options: BenchOptions) -> Benchmark | Components:
    """Measure a model against what each target makes of it.

    The outputs of every variant are compared with the raw model's, as ``verify`` does. Those that
    are right are timed together, in rounds, each once per round in random order, their sessions
    opened anew several times, next to a second session of the raw file: what differs no more than
    that one, or by less than 1 %, is called noise. An engine is timed by itself, on a GPU.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; never changed. Or the path
            of an engine; or of a folder of graphs, such as those of a decoder, or of engines: each
            is measured by itself, sizes by the name of an input or dimension being for those that
            have it.

    Returns:
        The measurements, of a folder those of each component. ``passed`` is False where a target
        gave wrong outputs; it does not raise.

    Raises:
        InputError: the model cannot be read, or ONNX Runtime does not load or run it.
        UsageError: an option that cannot be used, a dynamic size that is not given, or shapes that
            the model refuses.
        BackendMissingError: ONNX Runtime or a named provider is missing; of an engine its backend,
            or a GPU.
    """
    if not isinstance(model, str | os.PathLike):
        return bench_model(model, options)
    path = Path(model)
    if not path.is_dir():
        return bench_engine(path, options) if is_engine(path) else bench_model(path, options)
    if engines := engines_in(path):
        return Components(path, {one.name: bench_engine(one, options) for one in engines})
    bundle = open_folder(path)
    results = {}
    for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, POINTS).items():
        own = dataclasses.replace(options, shapes=shapes, dims=dims)
        results[name] = bench_model(bundle.files[name], own)
    return Components(bundle.folder, results)


def bench_engine(path: Path, options: BenchOptions) -> Benchmark:
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
    engine = Engine.open(path)
    declared = engine.declared()
    if options.shapes or options.dims:
        points = size_points(declared, options.shapes, options.dims, POINTS)
    else:
        usual = [one for _, one, _ in engine.record.profiles]
        points = [(", ".join(f"{k}={shape_text(v)}" for k, v in one.items()), one) for one in usual]
    cases, timings = dict[str, tuple[str, ...]](), list[Timing]()
    for label, point in points:
        feeds = make_inputs(declared, {}, point, seed=options.seed)
        cases[label] = describe_feeds(feeds)
        times = engine.measure(feeds, least=FEWEST, seconds=options.seconds)
        quarters = quartiles_ms(times)
        timings.append(Timing(RAW, engine.name, label, len(times), 1, *quarters))
    return Benchmark(
        source=str(engine.path),
        passed=True,
        reason="",
        providers=(engine.name,),
        cases=cases,
        timings=tuple(timings),
        unranked={},
        numerics=options.numerics,
        runtime=engine.runtime,
        machine=machine(load_before),
        notes=("an engine by itself: nothing was compared",),
        seconds=time.perf_counter() - start,
    )

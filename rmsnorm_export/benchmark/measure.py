"""``bench`` as users call it: a model, or a folder of graphs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rmsnorm_export.benchmark.model import bench_model
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.decoder.bundle import Components, open_folder
from rmsnorm_export.graph.load import Source
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.sizes import POINTS


@takes(BenchOptions)
def bench(model: Source, options: BenchOptions) -> Benchmark | Components:
    """Measure a model against what each target makes of it.

    The outputs of every variant are compared with the raw model's, as ``verify`` does. Those that
    are right are timed together, in rounds, each once per round in random order, their sessions
    opened anew several times, next to a second session of the raw file: what differs no more than
    that one, or by less than 1 %, is called noise.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; never changed. Or the path
            of a folder of graphs, such as those of a decoder: each is measured by itself, sizes by
            the name of an input or dimension being for those that have it.

    Returns:
        The measurements, of a folder those of each component. ``passed`` is False where a target
        gave wrong outputs; it does not raise.

    Raises:
        InputError: the model cannot be read, or ONNX Runtime does not load or run it.
        UsageError: an option that cannot be used, a dynamic size that is not given, or shapes that
            the model refuses.
        BackendMissingError: ONNX Runtime or a named provider is missing.
    """
    if not isinstance(model, str | os.PathLike) or not Path(model).is_dir():
        return bench_model(model, options)
    bundle = open_folder(model)
    results = {}
    for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, POINTS).items():
        own = dataclasses.replace(options, shapes=shapes, dims=dims)
        results[name] = bench_model(bundle.files[name], own)
    return Components(bundle.folder, results)

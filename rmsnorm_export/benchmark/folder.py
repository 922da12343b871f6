"""``bench`` for a folder of graphs or engines: each by itself."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rmsnorm_export.benchmark.measure import bench_model
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.graph.bundle import Components, open_folder
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.sizes import POINTS
from rmsnorm_export.tensorrt.engine.backends import engines_in


@takes(BenchOptions)
def bench_folder(folder: str | os.PathLike[str], options: BenchOptions) -> Components:
    """Measure every graph of a folder against its targets, or time every engine: as `bench` does.

    Sizes by the name of an input or dimension are for the graphs that have it.

    Args:
        folder: as for ``optimize``, or with the engines that ``build_engine`` makes.

    Returns:
        A ``Benchmark`` for each component.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
        UsageError, InputError, BackendMissingError: as `bench`.
    """
    if engines := engines_in(Path(folder)):
        return Components(Path(folder), {path.name: bench_model(path, options) for path in engines})
    bundle = open_folder(folder)
    results = {
        name: bench_model(
            bundle.files[name], dataclasses.replace(options, shapes=shapes, dims=dims)
        )
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, POINTS).items()
    }
    return Components(bundle.folder, results)

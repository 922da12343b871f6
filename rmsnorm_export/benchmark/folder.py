"""``bench`` for a folder of graphs: each by itself."""

from __future__ import annotations

import dataclasses
import os

from rmsnorm_export.benchmark.measure import bench
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.graph.bundle import Components, open_folder
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.runtime.sizes import POINTS


@takes(BenchOptions)
def bench_folder(folder: str | os.PathLike[str], options: BenchOptions) -> Components:
    """Measure every graph of a folder against its targets, as `bench` does with one.

    Sizes by the name of an input or dimension are for the graphs that have it.

    Args:
        folder: as for ``optimize_folder``.

    Returns:
        A ``Benchmark`` for each component.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
        UsageError, InputError, BackendMissingError: as `bench`.
    """
    bundle = open_folder(folder)
    results = {
        name: bench(
            bundle.files[name], **keywords(dataclasses.replace(options, shapes=shapes, dims=dims))
        )
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, POINTS).items()
    }
    return Components(bundle.folder, results)

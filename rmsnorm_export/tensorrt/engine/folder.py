"""``build`` for a folder of graphs: an engine of each, in one folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rmsnorm_export.graph.bundle import Components, new_folder, open_folder
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.result import EngineResult


@takes(BuildOptions)
def build_engines(folder: StrPath, path: StrPath, options: BuildOptions) -> Components:
    """Build an engine from every graph of a folder: ``prefill.engine``, ``decode.engine``.

    Ranges go by the names of dimensions, so that what is one size in several graphs is one range in
    their profiles: ``dims="batch=1,4,8 sequence=1,128,2048 past=1,512,4096"``.

    Args:
        folder: as for ``optimize``.
        path: of the folder for the engines and their records, which appears whole or not at all.

    Returns:
        An ``EngineResult`` for each component.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
        UsageError, InputError, BackendMissingError, RequirementError: as `build_engine`.
    """
    bundle = open_folder(folder)
    sizes = bundle.sizes(options.shapes, options.dims, RANGES)
    results: dict[str, EngineResult] = {}
    with new_folder(path, force=options.force) as made:
        for name, (shapes, dims) in sizes.items():
            own = dataclasses.replace(options, shapes=shapes, dims=dims, force=False)
            results[name] = build_engine(
                bundle.files[name], made / f"{name}.engine", **keywords(own)
            )
    final = Path(os.path.abspath(path))
    return Components(
        final,
        {
            name: EngineResult(final / one.path.name, final / one.sidecar.name, one.record)
            for name, one in results.items()
        },
    )

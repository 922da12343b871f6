"""The commands on a folder of graphs: each graph by itself, under its name."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.result import Verification, merged
from rmsnorm_export.compare.verify import verify_models
from rmsnorm_export.decoder.bundle import (
    TOKENIZER,
    Bundle,
    Components,
    companions,
    copy_missing,
    new_folder,
    open_folder,
)
from rmsnorm_export.decoder.finish import finish
from rmsnorm_export.decoder.result import FolderResult, GenerationExport
from rmsnorm_export.decoder.text import text_for
from rmsnorm_export.decoder.tokens import Held
from rmsnorm_export.errors import UsageError
from rmsnorm_export.rewrite.optimize import inspect_model, optimize_model
from rmsnorm_export.rewrite.options import HealthOptions, OptimizeOptions
from rmsnorm_export.runtime.sizes import ONE_POINT, RANGES
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.engine.build import build_model
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.result import EngineResult


def optimize_folder(folder: StrPath, options: OptimizeOptions) -> FolderResult:
    """Return the graphs of a folder, optimized; arguments as for ``optimize``.

    Raises:
        InputError: it is no folder of graphs; and as ``optimize``.
    """
    start, bundle = time.perf_counter(), open_folder(folder)
    beside = companions(bundle.folder)
    held, text = Held(), text_for(options, beside.get(TOKENIZER))
    results = {}
    for name, own in _own_options(bundle, options).items():
        result = optimize_model(bundle.files[name], own)
        results[name] = finish(result, own, held=held, text=text)
    return FolderResult(
        results,
        bundle.manifest,
        fill=lambda place: copy_missing(beside, place),
        log="",
        seconds=time.perf_counter() - start,
        source=bundle,
    )


def _own_options(bundle: Bundle, options: OptimizeOptions) -> dict[str, OptimizeOptions]:
    """Return the options of each graph, with what of inputs and sizes concerns it."""
    if not (options.inputs or options.shapes or options.dims):
        return dict.fromkeys(bundle.files, options)
    given = bundle.given(options.inputs)
    return {
        name: dataclasses.replace(options, inputs=given[name], shapes=shapes, dims=dims)
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, ONE_POINT).items()
    }


def inspect_folder(folder: StrPath, options: HealthOptions) -> GenerationExport:
    """Return the reports of the graphs of a folder; arguments as for ``inspect``."""
    start, bundle = time.perf_counter(), open_folder(folder)
    reports = {name: inspect_model(file, options) for name, file in bundle.files.items()}
    return GenerationExport(bundle.folder, reports, seconds=time.perf_counter() - start)


def verify_folders(a: Bundle, b: Bundle, options: VerifyOptions) -> Verification:
    """Compare every graph of ``a`` with that of the same name, on random inputs of its own."""
    if options.inputs is not None or a.files.keys() != b.files.keys():
        what = "The components of the two folders are others, or inputs are given."
        fix = "compare two exports of one model, without inputs; or files of single components"
        raise UsageError(what, found=f"{', '.join(a.files)}; and {', '.join(b.files)}", fix=fix)
    parts: dict[str, Verification] = {}
    for name, (shapes, dims) in a.sizes(options.shapes, options.dims, ONE_POINT).items():
        own = dataclasses.replace(options, shapes=shapes, dims=dims)
        parts[name] = verify_models(a.files[name], b.files[name], own)
    return merged(parts)


def build_folder(folder: StrPath, path: StrPath, options: BuildOptions) -> Components:
    """Build the engine of each graph of a folder; arguments as for ``build_engine``."""
    bundle, final = open_folder(folder), Path(os.path.abspath(path))
    results: dict[str, EngineResult] = {}
    with new_folder(path, force=options.force) as stage:
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, RANGES).items():
            own = dataclasses.replace(options, shapes=shapes, dims=dims, force=False)
            one = build_model(bundle.files[name], stage / f"{name}.engine", own)
            results[name] = dataclasses.replace(
                one, path=final / one.path.name, sidecar=final / one.sidecar.name
            )
    return Components(final, results)

"""A PyTorch source as ONNX, and its comparison with PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rmsnorm_export.compare.generation import verify_generation
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.compare.source import compare_file, load_source
from rmsnorm_export.deploy.tables import Export
from rmsnorm_export.options import Progress
from rmsnorm_export.torch.export.export import convert
from rmsnorm_export.torch.generation.export import make_decoder
from rmsnorm_export.torch.generation.source import load_generative
from rmsnorm_export.torch_options import ExportOptions, GenerationOptions, SourceOptions

Parity = Verification | Exception | None
"""The comparison with PyTorch, or why there is none."""


def load_and_convert(
    source: str,
    load: SourceOptions,
    task: str | None,
    options: dict[str, Any],
    bounds: VerifyOptions,
) -> tuple[Any, str, Callable[[Path], Verification]]:
    """Return a source as graphs in memory, the exporter's log, and what compares the files.

    Args:
        source: as ``export`` takes it.
        load: how it is loaded.
        task: None: one graph; ``generation``: a decoder's.
        options: of ``export`` or ``export_generation``; none is of the inputs.
        bounds: of the comparison with PyTorch; the seed is that of the inputs.

    Raises:
        UsageError, InputError, BackendMissingError: as ``export`` from the command line.
    """
    if task is None:
        loaded, example = load_source(source, load, seed=bounds.seed)
        inputs = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic}
        result, log = convert(loaded.module, example.args, ExportOptions(**inputs, **options))
        notes = (*result.report.notes, *loaded.notes)
        report = dataclasses.replace(result.report, source=source, notes=notes)
        graph = dataclasses.replace(result, report=report)
        return graph, log, lambda place: compare_file(place, loaded, example, bounds)
    model, feeds, notes = load_generative(source, load, seed=bounds.seed)
    decoder = make_decoder(model, GenerationOptions(inputs=feeds, **options))
    reports = {
        name: dataclasses.replace(report, notes=(*report.notes, *notes))
        for name, report in decoder.reports.items()
    }
    cache = options.get("static_cache")
    return (
        dataclasses.replace(decoder, reports=reports),
        decoder.log,
        lambda place: verify_generation(model, place, feeds, static_cache=cache, rtol=bounds.rtol),
    )


def export_source(
    source: str, table: Export, place: Path, progress: Progress
) -> tuple[str, Parity]:
    """Write a module as ONNX with every norm spelled out; return the exporter's log.

    Args:
        source: as ``export`` takes it; modules and files are looked for in the working folder.
        table: how it is loaded and exported.
        place: of the file, or of the folder of graphs.
        progress: called with the work at hand.

    Raises:
        UsageError, InputError, BackendMissingError: as ``load_and_convert``.
    """
    progress("loading the module", 0, 1)
    options: dict[str, Any] = {"target": "plain", "opset": table.opset, "progress": progress}
    if table.task is not None:
        options |= {"static_cache": table.static_cache, "multi_token": table.multi_token}
    bounds = VerifyOptions(rtol=table.rtol, seed=table.seed)
    exported, log, compare = load_and_convert(source, table.load, table.task, options, bounds)
    progress("writing the model", 0, 1)
    exported.save(place)
    if not table.verify:
        return log, None
    progress("comparing with PyTorch", 0, 1)
    try:
        return log, compare(place)
    except Exception as problem:  # the file is written: it is not lost
        return log, problem


@contextlib.contextmanager
def working_beside(folder: Path) -> Iterator[None]:
    """Work in ``folder``; what is imported from there in the block is read anew the next time."""
    before, modules = os.getcwd(), set(sys.modules)
    importlib.invalidate_caches()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == folder:
                del sys.modules[name]

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
from rmsnorm_export.torch.export.export import convert
from rmsnorm_export.torch.generation.export import make_decoder
from rmsnorm_export.torch.generation.source import load_generative
from rmsnorm_export.torch_options import ExportOptions, GenerationOptions, SourceOptions


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
    how = {name: options[name] for name in ("static_cache", "part") if name in options}
    return (
        dataclasses.replace(decoder, reports=reports),
        decoder.log,
        lambda place: verify_generation(model, place, feeds, **how, rtol=bounds.rtol),
    )


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

"""[export]: a PyTorch source as plain ONNX, and its comparison with PyTorch."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
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
from rmsnorm_export.torch_options import ExportOptions, GenerationOptions

Parity = Verification | Exception | None
"""The comparison with PyTorch, or why there is none."""


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
        UsageError, InputError, BackendMissingError: as ``export`` from the command line.
    """
    progress("loading the module", 0, 1)
    load = table.load
    how: Any = {"seed": table.seed}
    options: Any = {"target": "plain", "opset": table.opset, "progress": progress}
    if table.task is None:
        loaded, given = load_source(source, load, **how)
        options |= {"kwargs": given.kwargs, "dynamic_shapes": given.dynamic}
        result, log = convert(loaded.module, given.args, ExportOptions(**options))
        progress("writing the model", 0, 1)
        result.save(place)
    else:
        model, inputs, _ = load_generative(source, load, **how)
        cache: Any = {"static_cache": table.static_cache}
        options |= {"multi_token": table.multi_token, "inputs": inputs, **cache, **how}
        log = make_decoder(model, GenerationOptions(**options)).save(place).log
    if not table.verify:
        return log, None
    progress("comparing with PyTorch", 0, 1)
    try:
        if table.task is not None:
            return log, verify_generation(model, place, inputs, rtol=table.rtol, **cache)
        bounds = VerifyOptions(rtol=table.rtol, seed=table.seed)
        return log, compare_file(place, loaded, given, bounds)
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

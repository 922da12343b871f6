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

from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.pytorch import PyTorch, example_feeds
from rmsnorm_export.compare.result import Verification, merged
from rmsnorm_export.compare.verify import compare_backends
from rmsnorm_export.decoder.export import make_decoder
from rmsnorm_export.decoder.finish import finish, with_weights_as_read
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.options import GenerationOptions
from rmsnorm_export.decoder.source import load_generative
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.torch.export.convert import convert
from rmsnorm_export.torch.source.example import Example, Loaded, example_of
from rmsnorm_export.torch.source.load import load as load_source
from rmsnorm_export.torch_options import ExportOptions, SourceOptions


def load_and_convert(
    source: str,
    load: SourceOptions,
    task: str | None,
    options: dict[str, Any],
    bounds: VerifyOptions,
    *,
    compared: bool = False,
) -> tuple[Any, str, Callable[[Path], Verification]]:
    """Return a source as graphs in memory, the exporter's log, and what compares the files.

    Args:
        source: as ``export`` takes it.
        load: how it is loaded.
        task: None: one graph; ``generation``: a decoder's.
        options: of ``export`` or ``export_generation``; none is of the inputs.
        bounds: of the comparison with PyTorch; the seed is that of the inputs.
        compared: it will be made, so that a decoder that cannot run here is refused at once.

    Raises:
        UsageError, InputError, BackendMissingError: as ``export`` from the command line.
    """
    if task is None:
        loaded = load_source(source, load)
        example = example_of(loaded, load.shapes, seed=bounds.seed)
        inputs = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic}
        settings = ExportOptions(**inputs, **options)
        result, log = convert(loaded.module, example.args, settings)
        (result,) = with_weights_as_read([finish(result, settings)], settings.target)
        graph = result.noting(loaded.notes, source=source)
        return graph, log, lambda place: compare_file(place, loaded, example, bounds)
    model, feeds, notes = load_generative(source, load, seed=bounds.seed)
    if compared and str(model.dtype) == "torch.bfloat16":
        raise UsageError(
            "ONNX Runtime's CPU provider has no products of bfloat16 to compare with PyTorch.",
            found="a decoder in bfloat16, and a comparison",
            fix="omit --verify ([verify] of a pipeline), or use --dtype f32 or f16",
        )
    decoder = make_decoder(model, GenerationOptions(inputs=feeds, **options))
    results = {name: one.noting(notes) for name, one in decoder.results.items()}
    return (
        dataclasses.replace(decoder, results=results),
        decoder.log,
        lambda place: verify_generation(
            model, place, feeds, rtol=bounds.rtol, progress=bounds.progress
        ),
    )


def compare_file(
    path: str | os.PathLike[str], loaded: Loaded, given: Example, options: VerifyOptions
) -> Verification:
    """Compare every output of a file that was exported from ``loaded`` with PyTorch's.

    Args:
        path: of the file.
        loaded: the source.
        given: what it was exported with; dynamic sizes are changed once.
        options: of ``verify``: the bounds, the seed of ``given``.

    Raises:
        VerificationError: the module or the file cannot be run.
        BackendMissingError: ONNX Runtime is missing.
    """
    file = OnnxRuntime(load_model(path), optimized=True)
    parts: dict[str, Verification] = {}
    for args, kwargs in given.feeds(seed=options.seed, limit=loaded.limit):
        called = dataclasses.replace(loaded, args=args, kwargs=kwargs)
        feeds = example_feeds(called, file.declared())
        one = compare_backends(PyTorch(called), file, dataclasses.replace(options, inputs=feeds))
        parts[f"call {len(parts) + 1}"] = one
    whole = merged(parts) if len(parts) > 1 else parts["call 1"]
    source = f"random, seed {options.seed}" if given.inputs else "the example inputs of the source"
    return dataclasses.replace(whole, source=source)


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

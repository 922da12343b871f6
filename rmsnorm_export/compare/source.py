"""A file that was exported from a PyTorch source, against that source."""

from __future__ import annotations

import dataclasses
import os

from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.pytorch import PyTorch, example_feeds
from rmsnorm_export.compare.result import Verification, merged
from rmsnorm_export.compare.verify import compare_backends
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.torch.source.example import Example, Loaded, example_of
from rmsnorm_export.torch.source.load import load
from rmsnorm_export.torch_options import SourceOptions


def load_source(source: str, options: SourceOptions, *, seed: int) -> tuple[Loaded, Example]:
    """Load a source in ``options.dtype``, and make its example inputs.

    Args:
        source: as ``export`` takes it.
        options: how it is loaded.
        seed: of the inputs.

    Raises:
        UsageError, InputError, BackendMissingError: as ``load`` and ``example_of``.
    """
    loaded = load(source, options)
    return loaded, example_of(loaded, options.shapes, seed=seed)


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

"""A file that was exported from a PyTorch source, against that source."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.eager import feeds_of_call, run_eager
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.pytorch import PyTorch
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.compare.verify import RecordedCall, compare_recorded
from rmsnorm_export.torch.source.example import Example, Loaded, example_of
from rmsnorm_export.torch.source.load import load
from rmsnorm_export.torch_options import SourceOptions


def load_source(
    source: str, options: SourceOptions, *, seed: int, option: str
) -> tuple[Loaded, Example]:
    """Load a source in ``options.dtype``, and make its example inputs.

    Args:
        source: as ``export`` takes it.
        options: how it is loaded.
        seed: of the inputs.
        option: how the user gives ``options.shapes``, for errors.

    Raises:
        UsageError, InputError, BackendMissingError: as ``load`` and ``example_of``.
    """
    loaded = load(
        source,
        arguments=options.arguments or {},
        dtype=options.dtype,
        trust_source=options.trust_source,
    )
    return loaded, example_of(loaded, options.shapes, dims=options.dims, seed=seed, option=option)


def compare_file(
    path: str | os.PathLike[str], loaded: Loaded, given: Example, options: VerifyOptions
) -> Verification:
    """Compare every output of a file that was exported from ``loaded`` with PyTorch's.

    Args:
        path: of the file.
        loaded, given: of ``load_source``.
        options: of ``verify``: the bounds, the seed of ``given``.

    Raises:
        InputError, NotRunError: the module cannot be run.
        VerificationError, BackendMissingError: as ``compare_recorded``.
    """

    def calls(names: Sequence[str]) -> list[RecordedCall]:
        return [
            RecordedCall(
                feeds_of_call(names, args, kwargs),
                Answer(*run_eager(loaded.module, args, kwargs), named=False),
            )
            for args, kwargs in given.feeds(seed=options.seed, limit=loaded.limit)
        ]

    source = f"random, seed {options.seed}" if given.inputs else "the example inputs of the source"
    return compare_recorded(path, calls, options, runtime=PyTorch(loaded).runtime, source=source)

"""What a PyTorch source computes in its own float type, for a file that was exported in another."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.eager import Call, Module, feeds_of_call, run_eager, to_array
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.pytorch import PyTorch
from rmsnorm_export.compare.result import Verification
from rmsnorm_export.compare.verify import RecordedCall, compare_recorded
from rmsnorm_export.op.type_names import TYPE_NAMES, float_name
from rmsnorm_export.rewrite.options import SourceOptions
from rmsnorm_export.torch.source.example import Example, Loaded, example_of
from rmsnorm_export.torch.source.load import load

Run = tuple[Call, Answer]
"""Inputs of a call, and its outputs."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OwnType:
    """What a source computes in its own float type, kept before it is loaded in another one.

    Attributes:
        dtype: of most of its weights, e.g. ``bfloat16``.
        runs: inputs, which the other type can hold, too, and outputs of each call.
        digest: SHA-256 of its float weights in the other type.
    """

    dtype: str
    runs: tuple[Run, ...]
    digest: str


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a file is compared with.

    Attributes:
        runs: inputs and outputs of each call of the source.
        weights: its float type; "" where it ran in that of the file.
        notes: for the reader.
    """

    runs: tuple[Run, ...]
    weights: str
    notes: tuple[str, ...]


def load_source(
    source: str, options: SourceOptions, *, seed: int, option: str, own: bool
) -> tuple[Loaded, Example, OwnType | Exception | None]:
    """A source in ``options.dtype``, its example inputs, and what it computes in its own type.

    It is loaded twice where the two types differ, and not held twice. An error of running it in
    its own type is for the comparison: a file is to be written all the same.

    Args:
        source: as ``export`` takes it.
        options: how it is loaded.
        seed: of the inputs.
        option: how the user gives ``options.shapes``, for errors.
        own: whether what it computes in its own type is wanted.

    Raises:
        UsageError, InputError, BackendMissingError: as ``load`` and ``example_of``.
    """

    def loaded_in(dtype: str | None) -> Loaded:
        return load(
            source,
            arguments=options.arguments or {},
            dtype=dtype,
            trust_source=options.trust_source,
        )

    def example(loaded: Loaded) -> Example:
        return example_of(loaded, options.shapes, dims=options.dims, seed=seed, option=option)

    computed = None
    # A config.json has no weights, and so no type, of its own.
    if own and options.dtype is not None and not os.path.isfile(source):
        computed = _in_own_type(loaded_in(None), example, options.dtype, seed)
    loaded = loaded_in(options.dtype)
    return loaded, example(loaded), computed


def _in_own_type(
    loaded: Loaded, example: Callable[[Loaded], Example], dtype: str, seed: int
) -> OwnType | Exception | None:
    """None where that is ``dtype``."""
    name = TYPE_NAMES[float_name(dtype)]
    side, other = PyTorch(loaded), getattr(torch, name)
    weights = side.weights_type
    if weights in ("", name) or not isinstance(loaded.module, torch.nn.Module):
        return None
    taken = getattr(torch, side.float_type or "float32")

    def rounded(leaf: Any) -> Any:
        floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(other).to(taken) if floats else leaf

    calls = example(loaded).feeds(seed=seed, limit=loaded.limit)
    try:
        runs = _runs(loaded, [pytree.tree_map(rounded, call) for call in calls])
    except Exception as problem:
        return problem
    return OwnType(weights, runs, _digest(loaded.module, other))


def reference(
    loaded: Loaded, given: Example, own: OwnType | Exception | None, *, seed: int
) -> Reference:
    """What the source computes in its own type, as far as that is the same source.

    In that of the file where it is the same, or where the source gives other weights each time.

    Raises:
        InputError, NotRunError: the module cannot be run.
    """
    if isinstance(own, Exception):
        raise own
    if own is None:
        return Reference(_runs(loaded, given.feeds(seed=seed, limit=loaded.limit)), "", ())
    if own.digest != _digest(loaded.module, getattr(torch, PyTorch(loaded).weights_type)):
        note = (
            f"compared with the source in the type of the file, not in its own {own.dtype}: "
            "its weights are not the same each time"
        )
        return dataclasses.replace(reference(loaded, given, None, seed=seed), notes=(note,))
    return Reference(own.runs, own.dtype, (f"compared with the source in its own {own.dtype}",))


def compare_file(
    path: str | os.PathLike[str],
    loaded: Loaded,
    given: Example,
    own: OwnType | Exception | None,
    options: VerifyOptions,
) -> Verification:
    """Every output of a file that was exported from ``loaded``, against PyTorch.

    Args as of ``reference``, and of ``verify``: the bounds, the seed of ``given``.

    Raises:
        InputError, NotRunError, VerificationError, BackendMissingError: as ``reference`` and
            ``compare_recorded``.
    """
    runs = reference(loaded, given, own, seed=options.seed)
    source = f"random, seed {options.seed}" if given.inputs else "the example inputs of the source"

    def calls(names: Sequence[str]) -> list[RecordedCall]:
        return [RecordedCall(feeds_of_call(names, *call), made) for call, made in runs.runs]

    return compare_recorded(
        path,
        calls,
        options,
        runtime=PyTorch(loaded).runtime,
        weights=runs.weights,
        source=source,
        notes=runs.notes,
    )


def _runs(loaded: Loaded, calls: list[Call]) -> tuple[Run, ...]:
    return tuple(
        ((args, kwargs), Answer(*run_eager(loaded.module, args, kwargs), named=False))
        for args, kwargs in calls
    )


def _digest(module: Module, dtype: torch.dtype) -> str:
    """SHA-256 of the float weights of a module, by their names, in ``dtype``."""
    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        if weight.is_floating_point():
            digest.update(name.encode() + to_array(weight.to(dtype)).tobytes())
    return digest.hexdigest()

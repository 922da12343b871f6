"""Example inputs of a module: those of its source, or made from a description."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.runtime.sizes import Dims
from rmsnorm_export.torch.source.loaded import Loaded
from rmsnorm_export.torch.source.shapes import Input, dynamic_shapes, example, parse_shapes

Feed = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named inputs of one call."""

_OTHER_SIZES = 24
"""Largest size of a dynamic dimension in the second call."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Example:
    """What a module is exported with.

    Attributes:
        inputs: what the user said of the inputs; () when the source gives tensors.
        args, kwargs: the inputs.
        dynamic: dynamic dimensions, for ``torch.export``.
    """

    inputs: tuple[Input, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: Any

    def feeds(self, *, seed: int, limit: int) -> list[Feed]:
        """The inputs, and where dimensions are dynamic others of other sizes.

        Args:
            seed: of the example; the others get the next one.
            limit: as for ``shapes.example``.
        """
        calls: list[Feed] = [(self.args, self.kwargs)]
        if any(size.dynamic for item in self.inputs for size in item.sizes):
            other = example(self.inputs, seed=seed + 1, limit=limit, largest=_OTHER_SIZES)
            calls.append(((), other))
        return calls


def example_of(
    loaded: Loaded, shapes: str | None, *, seed: int, option: str, dims: Dims | None = None
) -> Example:
    """The inputs to export a module with.

    Args:
        loaded: the module.
        shapes: the user's description, or None.
        dims: ranges of dimensions that the description names.
        seed: of made inputs.
        option: how the user gives ``shapes``, for errors.

    Raises:
        UsageError: no inputs are known, or ``shapes`` does not go with the source.
    """
    program = isinstance(loaded.module, torch.export.ExportedProgram)
    if program and shapes:
        raise UsageError(
            f"{option} cannot change an exported program.",
            found=f"{option} with {loaded.name}",
            fix=f"leave {option} away: the program has its own",
        )
    if program or (loaded.args is not None and not shapes):
        return Example((), tuple(loaded.args or ()), dict(loaded.kwargs or {}), None)
    text = shapes or loaded.shapes
    if not text:
        parameters = inspect.signature(loaded.module.forward).parameters  # type: ignore[union-attr]
        raise UsageError(
            "The inputs of the module are not known.",
            found=f"{loaded.name} gives no example inputs; forward({', '.join(parameters)})",
            fix=f'describe them with {option}: "NAME=TYPE[SIZES];...", e.g. '
            '"ids=int64[batch=1..8,seq=1..2048]"',
        )
    inputs = parse_shapes(text, dims)
    made = example(inputs, seed=seed, limit=loaded.limit)
    return Example(inputs, (), made, dynamic_shapes(inputs))

"""A module to export and its example inputs: those of its source, or made from a description.

A description gives types, shapes and ranges as text, ``ids=int64[batch=1..8,seq=1..2048]``:

    inputs = input { ";" input }
    input  = name "=" type "[" [ size { "," size } ] "]"
    size   = NUMBER                      fixed
           | name                        dynamic, from 1
           | name "=" LOW ".." [ HIGH ]  dynamic

A dimension with one name has one size, in every input.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.type_names import TYPE_NAMES
from rmsnorm_export.printable import short

Feed = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named inputs of one call."""

_INPUT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*")
_SIZE = re.compile(
    r"\s*(?:([A-Za-z_]\w*)(?:\s*=\s*([0-9]{1,18})\s*\.\.\s*([0-9]{0,18}))?|([0-9]{1,18}))\s*"
)
_EXAMPLES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Sizes of the example inputs: all different, so that no two dimensions look like one, and not 1,
of which PyTorch makes a case of its own."""
_LARGEST_EXAMPLE = 2**31

_Dims = dict[str, tuple[int, torch.export.Dim]]
"""Dynamic dimensions by name, each with its size in the example."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A module and, where its source gives them, example inputs.

    Attributes:
        module: a module, or an exported program.
        name: of the source, for messages.
        args, kwargs: example inputs; None when the source gives none.
        shapes: what ``--shapes`` would be by default, or "".
        notes: what the user has to know of how it was loaded.
    """

    module: torch.nn.Module | torch.export.ExportedProgram
    name: str
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    shapes: str = ""
    notes: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        """Integers in inputs are smaller: the length of the shortest embedding table, else 2."""
        if not isinstance(self.module, torch.nn.Module):
            return 2
        modules = self.module.modules()
        tables = (m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding))
        return min(tables, default=2)


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """One input as the user describes it.

    Attributes:
        name: of the parameter of ``forward``.
        dtype: of its elements.
        shape: in the example.
        axes: the dynamic ones.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    axes: dict[int, torch.export.Dim]

    def resized(self) -> Input:
        """Return the same of another shape, where axes are dynamic."""
        sizes = [*self.shape]
        for axis, dim in self.axes.items():
            sizes[axis] = min(dim.max, sizes[axis] + 1 + len(dim.__name__) % 3)
        return dataclasses.replace(self, shape=tuple(sizes))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs of a module that is exported.

    Attributes:
        inputs: what the user declares of the inputs; () when the source gives tensors.
        args, kwargs: the inputs.
        dynamic: dynamic dimensions, for ``torch.export``.
    """

    inputs: tuple[Input, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: Any

    def feeds(self, *, seed: int, limit: int) -> list[Feed]:
        """Return the inputs, and where axes are dynamic others of other shapes, with the next seed.

        ``limit``: as for `random_inputs`.
        """
        calls: list[Feed] = [(self.args, self.kwargs)]
        if self.dynamic:
            others = [item.resized() for item in self.inputs]
            calls.append(((), random_inputs(others, seed=seed + 1, limit=limit)))
        return calls


def example_of(loaded: Loaded, shapes: str | None, *, seed: int) -> Example:
    """Return the inputs to export a module with.

    Args:
        loaded: the module.
        shapes: the user's description.
        seed: of random inputs.

    Raises:
        UsageError: no inputs are known, or ``shapes`` does not go with the source.
    """
    module = loaded.module
    if shapes and isinstance(module, torch.export.ExportedProgram):
        raise UsageError(
            "The shapes of an exported program are its own.",
            found=f"shapes with {loaded.name}",
            fix="omit --shapes",
        )
    if loaded.args is not None and not shapes:
        return Example((), loaded.args, dict(loaded.kwargs or {}), None)
    if not isinstance(module, torch.nn.Module):
        return Example((), (), {}, None)
    text = shapes or loaded.shapes
    if not text:
        parameters = ", ".join(inspect.signature(module.forward).parameters)
        raise UsageError(
            "The inputs of the module are not known.",
            found=f"{loaded.name} gives no example inputs; forward({parameters})",
            fix='describe them with --shapes: "NAME=TYPE[SIZES];...", e.g. '
            '"ids=int64[batch=1..8,seq=1..2048]"',
        )
    inputs = parse_shapes(text)
    kwargs = random_inputs(inputs, seed=seed, limit=loaded.limit)
    dynamic = {item.name: item.axes for item in inputs}
    return Example(inputs, (), kwargs, dynamic if any(dynamic.values()) else None)


def parse_shapes(text: str) -> tuple[Input, ...]:
    """Return the inputs that ``text`` describes, in order; the grammar stands above.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    inputs: dict[str, Input] = {}
    dims: _Dims = {}
    for part in filter(str.strip, text.split(";")):
        match = _INPUT.fullmatch(part)
        if match is None:
            raise _not_described(part)
        name, kind, sizes = match.groups()
        if name in inputs:
            raise _not_described(f"{name}, which is given twice")
        if kind not in TYPE_NAMES:
            raise _not_described(f"the type {kind} of {name}; types are {', '.join(TYPE_NAMES)}")
        parts = sizes.split(",") if sizes.strip() else []
        axes = [_size(size, dims) for size in parts]
        inputs[name] = Input(
            name,
            getattr(torch, TYPE_NAMES[kind]),
            tuple(example for example, _ in axes),
            {i: dim for i, (_, dim) in enumerate(axes) if dim is not None},
        )
    if not inputs:
        raise _not_described("no input")
    return tuple(inputs.values())


def _size(text: str, dims: _Dims) -> tuple[int, torch.export.Dim | None]:
    """Return the size of a dimension in the example, and it where it is dynamic."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _not_described(f"the size {text!r}")
    name, first, last, number = match.groups()
    if name in dims and first is None:
        return dims[name]
    low = int(number or first or 1)
    high = low if number else int(last) if last else None
    most = 2**63 if high is None else high
    if not 1 <= low <= most:
        raise _not_described(f"the size {text!r}, which is empty")
    if low == most:
        return low, None
    example = max(low, min(most, _EXAMPLES[len(dims) % len(_EXAMPLES)]))
    dim = torch.export.Dim(name, min=low, max=high)
    before = dims.setdefault(name, (example, dim))
    if (before[1].min, before[1].max) != (dim.min, dim.max):
        raise _not_described(f"the size {text!r}, which has another range before")
    return before


def _not_described(part: str) -> UsageError:
    return UsageError(
        "The description of the inputs cannot be read (--shapes).",
        found=short(part.strip(), 200),
        fix='write inputs separated by ;, e.g. "ids=int64[batch=1..8,seq=1..];x=f16[batch,96]"',
    )


def random_inputs(inputs: Sequence[Input], *, seed: int, limit: int) -> dict[str, torch.Tensor]:
    """Return inputs by name: normal numbers, integers from 0 below ``limit``, masks of ones.

    Args:
        inputs: their description.
        seed: of the numbers.
        limit: integers are smaller than this; for indices the length of the shortest table.

    Raises:
        UsageError: an input is too large.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for item in inputs:
        shape, dtype = item.shape, item.dtype
        if math.prod(shape) > _LARGEST_EXAMPLE:
            raise _not_described(f"{item.name} of shape {shape}, which is too large")
        if dtype == torch.bool or "mask" in item.name:
            values = torch.ones(shape, dtype=dtype)
        elif dtype.is_floating_point:
            values = torch.randn(shape, generator=generator).to(dtype)
        else:
            values = torch.randint(0, max(limit, 1), shape, generator=generator, dtype=dtype)
        tensors[item.name] = values
    return tensors

"""A module to export and its example inputs: those of its source, or made from a description.

A description gives types, shapes and ranges as text, ``ids=int64[batch=1..8,seq=1..2048]``:

    inputs    = input { ";" input }
    input     = name "=" type "[" [ size { "," size } ] "]"
    size      = NUMBER                      fixed
              | name                        dynamic, from 1
              | name "=" NUMBER             fixed; the name is for the reader
              | name "=" LOW ".." [ HIGH ]  dynamic

A dimension with one name has one size, in every input.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.type_names import TYPE_NAMES
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.sizes import DECLARED, Dims, read, read_range

Feed = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named inputs of one call."""

_OTHER_SIZES = 24
"""Largest size of a dynamic dimension in the second call."""

_INPUT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\s*=([^=]*))?|([0-9]{1,18})")
_EXAMPLES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Sizes of the example inputs: all different, so that no two dimensions look like one, and not 1,
which PyTorch treats apart."""


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
        """The inputs, and where dimensions are dynamic others of other sizes, with the next seed.

        ``limit``: as for `example`.
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
        shapes, dims: the user's description, and ranges of dimensions that it names.
        option: how the user gives ``shapes``, for errors.

    Raises:
        UsageError: no inputs are known, or ``shapes`` does not go with the source.
    """
    program = isinstance(loaded.module, torch.export.ExportedProgram)
    if program and shapes:
        raise UsageError(
            f"{option} cannot change an exported program.",
            found=f"{option} with {loaded.name}",
            fix=f"omit {option}: the program has its own",
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


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """One dimension.

    Attributes:
        name: or "".
        high: the largest size; None: no limit.
        example: size of the example input.
    """

    name: str
    low: int
    high: int | None
    example: int

    @property
    def dynamic(self) -> bool:
        return self.high is None or self.high > self.low

    def __str__(self) -> str:
        high = "" if self.high is None else self.high
        return f"{self.name}={self.low}..{high}" if self.dynamic else f"{self.name}={self.low}"


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """One input: its name, type and dimensions."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size.example for size in self.sizes)


def parse_shapes(text: str, dims: Dims | None = None) -> tuple[Input, ...]:
    """The inputs that ``text`` describes, in order.

    Args:
        text: in the grammar above.
        dims: sizes or ranges of dimensions that ``text`` names; see ``runtime.sizes``.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    inputs: list[Input] = []
    seen: dict[str, Size] = {}
    for (_, name), ((low,), _usual, (high,)) in read(None, dims, DECLARED).items():
        seen[name] = _ranged(name, low, high, seen, f"{name}={low}..{high}")
    for part in filter(str.strip, text.split(";")):
        match = _INPUT.fullmatch(part)
        if match is None:
            raise _declaration_error("An input cannot be read.", part)
        name, kind, sizes = match.groups()
        if any(other.name == name for other in inputs):
            raise _declaration_error("An input is given twice.", name, "give each input once")
        if kind not in TYPE_NAMES:
            what = f"Input {quoted(name)} has no type that is known."
            raise _declaration_error(what, kind, f"use one of {', '.join(TYPE_NAMES)}")
        parts = [size.strip() for size in sizes.split(",")] if sizes.strip() else []
        dtype = getattr(torch, TYPE_NAMES[kind])
        inputs.append(Input(name, dtype, tuple(_declared_size(name, size, seen) for size in parts)))
    if not inputs:
        raise _declaration_error("--shapes describes no input.", repr(text))
    names = sorted({size.name for item in inputs for size in item.sizes} - {""})
    if unknown := sorted(seen.keys() - set(names)):
        what = f"The inputs have no dimension {quoted(unknown[0])}."
        known = f"their dimensions are {', '.join(map(quoted, names)) or 'none'}"
        raise _declaration_error(what, known, "use one of these names in --dims")
    return tuple(inputs)


def _declared_size(owner: str, text: str, seen: dict[str, Size]) -> Size:
    match = _DIMENSION.fullmatch(text)
    name, declared, number = match.groups() if match is not None else (None, "", None)
    if name in seen and declared is None:
        return seen[name]
    try:
        low, high = read_range(number or ("1.." if declared is None else declared))
    except ValueError:
        what = f"A dimension of input {quoted(owner)} cannot be read."
        raise _declaration_error(what, repr(text)) from None
    size = _ranged(name or "", low, high, seen, text)
    other = seen.setdefault(name, size) if name else size
    if (other.low, other.high) != (low, high):
        raise _declaration_error(
            f"Dimension {quoted(size.name)} has two ranges.",
            f"{other} and {size}",
            "give the same range to one name, or different names to different dimensions",
        )
    return other


def _ranged(name: str, low: int, high: int | None, seen: Mapping[str, Size], text: str) -> Size:
    if low < 1 or (high is not None and high < low):
        what = f"Dimension {quoted(name or text)} is empty."
        raise _declaration_error(what, text, "give sizes from 1, and LOW..HIGH in this order")
    wish = _EXAMPLES[len(seen) % len(_EXAMPLES)]
    return Size(name, low, high, max(low, wish if high is None else min(high, wish)))


def _declaration_error(what: str, found: str, fix: str = "") -> UsageError:
    write = 'write inputs separated by ;, e.g. "ids=int64[batch=1..8,seq=1..,width=96]"'
    return UsageError(what, found=short(found.strip(), 200) or "nothing", fix=fix or write)


def dynamic_shapes(inputs: Sequence[Input]) -> dict[str, dict[int, torch.export.Dim]] | None:
    """``dynamic_shapes`` for ``torch.export``, by input name; None when every size is fixed."""
    dims: dict[str, torch.export.Dim] = {}
    result: dict[str, dict[int, torch.export.Dim]] = {}
    for item in inputs:
        result[item.name] = {}
        for axis, size in enumerate(item.sizes):
            if size.dynamic:
                dim = torch.export.Dim(size.name, min=size.low, max=size.high)
                result[item.name][axis] = dims.setdefault(size.name, dim)
    return result if dims else None


def example(
    inputs: Sequence[Input], *, seed: int, limit: int, largest: int | None = None
) -> dict[str, torch.Tensor]:
    """Random inputs by name: normal numbers, integers from 0 below ``limit``, masks of ones.

    Args:
        limit: integers are smaller than this; for indices the length of the shortest table.
        largest: None: the example size of every dynamic dimension; else up to this size, within
            its range: other sizes than the graph was traced with.

    Raises:
        UsageError: an input is too large for the memory.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for item in inputs:
        shape = item.shape
        if largest is not None:
            shape = tuple(_other_size(size, largest) for size in item.sizes)
        try:
            made[item.name] = _random(item, shape, generator, limit)
        except (RuntimeError, MemoryError) as error:  # PyTorch's allocator raises the first
            raise UsageError(
                f"The example of input {item.name!r} cannot be made.",
                found=f"{item.dtype} {list(shape)}: {(str(error) or 'no memory').splitlines()[0]}",
                fix="use smaller sizes; a range LOW..HIGH makes an example near LOW",
            ) from error
    return made


def _random(
    item: Input, shape: tuple[int, ...], generator: torch.Generator, limit: int
) -> torch.Tensor:
    if item.dtype == torch.bool or "mask" in item.name:
        return torch.ones(shape, dtype=item.dtype)
    if item.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(item.dtype)
    return torch.randint(0, max(limit, 1), shape, generator=generator, dtype=item.dtype)


def _other_size(size: Size, largest: int) -> int:
    if not size.dynamic:
        return size.example
    high = largest if size.high is None else min(size.high, largest)
    other = min(high, size.example + 1 + len(size.name) % 3)
    return max(size.low, other)

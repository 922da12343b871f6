"""``ids=int64[batch=1..8,seq=1..2048]``: types, shapes and ranges of a module's inputs as text.

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
import re
from collections.abc import Mapping, Sequence

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.float_names import FLOAT_NAMES
from rmsnorm_export.torch.dtypes import DTYPES, dtype_name

_TYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_SHORT = {spelling: dtype_name(DTYPES[name]) for spelling, name in FLOAT_NAMES.items()}
_SHORT |= {
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}

_INPUT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RANGE = re.compile(r"(\d{1,18})\s*\.\.\s*(\d{1,18})?")
_NUMBER = re.compile(r"\d{1,18}")
_EXAMPLES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Sizes of the example inputs: all different, so that no two dimensions look like one, and not 1,
which PyTorch treats apart."""

_WRITE = 'write e.g. "ids=int64[batch=1..8,seq=1..2048]"'


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """One dimension.

    Attributes:
        name: of the dimension, or "".
        low, high: smallest and largest size; high None: no limit.
        example: size of the example input.
    """

    name: str
    low: int
    high: int | None
    example: int

    @property
    def dynamic(self) -> bool:
        return self.high is None or self.high > self.low


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """One input: its name, type and dimensions."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size.example for size in self.sizes)


def parse_shapes(text: str) -> tuple[Input, ...]:
    """The inputs that ``text`` describes, in order.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    inputs: list[Input] = []
    seen: dict[str, Size] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        found = _INPUT.fullmatch(part)
        if found is None:
            raise _error("An input cannot be read.", part, f"{_WRITE}, inputs separated by ;")
        name, kind, dims = found.groups()
        if any(other.name == name for other in inputs):
            raise _error("An input is given twice.", name, "give each input once")
        dtype = _TYPES.get(_SHORT.get(kind, kind))
        if dtype is None:
            known = ", ".join([*_TYPES, *_SHORT])
            raise _error(f"Input {name!r} has no type that is known.", kind, f"use one of {known}")
        parts = [dim.strip() for dim in dims.split(",")] if dims.strip() else []
        inputs.append(Input(name, dtype, tuple(_size(name, dim, seen) for dim in parts)))
    if not inputs:
        raise _error("--shapes describes no input.", repr(text), _WRITE)
    return tuple(inputs)


def _size(owner: str, text: str, seen: dict[str, Size]) -> Size:
    if _NUMBER.fullmatch(text):
        return _fixed(owner, text, "", int(text))
    name, equals, rest = (piece.strip() for piece in text.partition("="))
    if not _NAME.fullmatch(name):
        raise _error(f"A dimension of input {owner!r} cannot be read.", repr(text), f"{_WRITE}")
    if not equals:
        if name in seen:
            return seen[name]
        size = _dynamic(owner, text, name, 1, None, seen)
    elif _NUMBER.fullmatch(rest):
        size = _fixed(owner, text, name, int(rest))
    else:
        found = _RANGE.fullmatch(rest)
        if found is None:
            raise _error(
                f"The range of dimension {name!r} of input {owner!r} cannot be read.",
                repr(text),
                f"write {name}=1..8, {name}=1.. without a limit, or {name}=8 for a fixed size",
            )
        low, high = int(found[1]), None if found[2] is None else int(found[2])
        size = _dynamic(owner, text, name, low, high, seen)
    other = seen.setdefault(name, size)
    if (other.low, other.high) != (size.low, size.high):
        raise _error(
            f"Dimension {name!r} has two ranges.",
            f"{_text(other)} and {_text(size)}",
            "give the same range to one name, or different names to different dimensions",
        )
    return other


def _fixed(owner: str, text: str, name: str, size: int) -> Size:
    if size < 1:
        raise _error(f"A dimension of input {owner!r} is empty.", text, "use sizes from 1")
    return Size(name, size, size, size)


def _dynamic(
    owner: str, text: str, name: str, low: int, high: int | None, seen: Mapping[str, Size]
) -> Size:
    if low < 1 or (high is not None and high < low):
        raise _error(
            f"Dimension {name!r} of input {owner!r} has an empty range.",
            text,
            f"write {name}=LOW..HIGH with 1 <= LOW <= HIGH",
        )
    wish = _EXAMPLES[len(seen) % len(_EXAMPLES)]
    example = max(low, wish if high is None else min(high, wish))
    return Size(name, low, high, example)


def _text(size: Size) -> str:
    if not size.dynamic:
        return f"{size.name}={size.low}"
    return f"{size.name}={size.low}..{'' if size.high is None else size.high}"


def _error(what: str, found: str, fix: str) -> UsageError:
    return UsageError(what, found=found.strip()[:200] or "nothing", fix=fix)


def dynamic_shapes(inputs: Sequence[Input]) -> dict[str, dict[int, torch.export.Dim]] | None:
    """``dynamic_shapes`` for ``torch.export``, by input name; None when every size is fixed."""
    dims: dict[str, torch.export.Dim] = {}
    result: dict[str, dict[int, torch.export.Dim]] = {}
    for item in inputs:
        result[item.name] = {}
        for axis, size in enumerate(item.sizes):
            if size.dynamic:
                if size.name not in dims:
                    dims[size.name] = torch.export.Dim(size.name, min=size.low, max=size.high)
                result[item.name][axis] = dims[size.name]
    return result if dims else None


def example(
    inputs: Sequence[Input], *, seed: int = 0, limit: int = 2, largest: int | None = None
) -> dict[str, torch.Tensor]:
    """Random inputs by name: normal numbers, integers from 0 below ``limit``, masks of ones.

    Args:
        inputs: what `parse_shapes` gives.
        seed: of the numbers.
        limit: integers are smaller than this; for indices the length of the shortest table.
        largest: None: the example size of every dynamic dimension; else up to this size, within
            its range: other sizes than the graph was traced with.

    Raises:
        UsageError: an input is too large for the memory.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for item in inputs:
        shape = tuple(_other_size(size, largest) for size in item.sizes)
        try:
            made[item.name] = _random(item, shape, generator, limit)
        except (RuntimeError, MemoryError) as error:  # PyTorch's allocator raises the first
            raise _error(
                f"The example of input {item.name!r} cannot be made.",
                f"{item.dtype} {list(shape)}: {(str(error) or 'no memory').splitlines()[0]}",
                "use smaller sizes; a range LOW..HIGH makes an example near LOW",
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


def _other_size(size: Size, largest: int | None) -> int:
    if largest is None or not size.dynamic:
        return size.example
    high = largest if size.high is None else min(size.high, largest)
    other = min(high, size.example + 1 + len(size.name) % 3)
    return max(size.low, other)

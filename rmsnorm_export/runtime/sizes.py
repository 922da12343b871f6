"""One grammar of sizes for every command: by input, or by the name of a dimension.

    shapes = entry { (";" | " ") entry }  ids=1x16,4x128;mask=4x128
    entry  = input "=" shape { "," shape }
    shape  = size { "x" size }
    dims   = entry { (";" | " ") entry }  batch=1,4,8 sequence=1..128
    entry  = dimension "=" size { "," size }
    size   = NUMBER | LOW ".." HIGH

As points, the n-th sizes of all entries belong together, and a single one goes with all. As ranges,
an input has one shape or three: smallest, usual and largest; a dimension has one size, three, or
two, of which the larger is the usual one. ``LOW..HIGH`` is a range whose usual size is the largest.
A name with ``=`` or ``;`` in it can be given by Python alone, which takes mappings.

What sizes mean for the inputs of a model is said in ``input_sizes``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import option
from rmsnorm_export.printable import quoted

Shape = tuple[int, ...]
Rows = tuple[Shape, ...]

ShapesByName = Mapping[str, Sequence[int | Sequence[int]]]
Shapes = str | ShapesByName | Sequence[str | ShapesByName]
"""One shape or several of each input, as text or by name; or a sequence of these."""

DimsByName = Mapping[str, int | Sequence[int | Sequence[int]]]
Dims = str | DimsByName | Sequence[str | DimsByName]
"""One size or several of each dimension, as text or by name; or a sequence of these."""

SizeKind = Literal["input", "dimension"]
INPUT: SizeKind = "input"
DIMENSION: SizeKind = "dimension"

Given = dict[tuple[SizeKind, str], Rows]
"""Shapes of inputs, and sizes of dimensions as shapes of rank 1."""

_SIZE = r"[0-9]{1,18}(?:\s*\.\.\s*[0-9]{1,18})?"
_ENTRY = re.compile(
    rf"[\s;]*([^\s=;][^=;]*?)\s*=\s*({_SIZE}(?:(?:x|\s*,\s*){_SIZE})*)(?=[\s;]|$)[\s;]*"
)
_RANGE = re.compile(r"([0-9]{1,18})(?:\s*(\.\.)\s*([0-9]{1,18})?)?")


LARGEST = 2**31 - 1
"""Size of a dimension; TensorRT takes no larger one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The purpose of sizes in a command.

    Attributes:
        ranges: as ranges; else as points.
        least: size.
        most_points: how many points may be given.
        most_elements: how many elements an input may have.
    """

    ranges: bool = False
    least: int = 0
    most_points: int = 3
    most_elements: int = 2**63


ONE_POINT = Use(most_points=1)
"""Of ``verify``."""

POINTS = Use(least=1, most_points=32, most_elements=2**28)
"""Of ``bench``; 1 GiB of one input in f32."""

RANGES = Use(ranges=True)
"""Of engines."""

DECLARED = Use(ranges=True, least=1)
"""Of ``export``."""


def shape_text(shape: Sequence[object]) -> str:
    """Write a shape as ``4x128``."""
    return "x".join(map(str, shape)) or "scalar"


def read(shapes: Shapes | None, dims: Dims | None, use: Use) -> Given:
    """Read ``shapes`` and ``dims``; as ranges, three rows for each.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    entries: Given = {}
    values: tuple[tuple[SizeKind, Any], ...] = ((DIMENSION, dims), (INPUT, shapes))
    for kind, value in values:
        for part in [value] if isinstance(value, str | Mapping) else value or ():
            pairs = _entries(part, kind, use) if isinstance(part, str) else part.items()
            for name, sizes in pairs:
                if (kind, name) in entries:
                    raise _unreadable(f"{name} stands twice", kind, use)
                entries[kind, name] = _rows(name, sizes, kind, use)
    return entries


def read_range(text: str) -> tuple[int, int | None]:
    """Return smallest and largest size of ``4``, ``1..8`` or, without an end, ``1..``.

    Raises:
        ValueError: it is none of these.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    low, dots, high = match.groups()
    return int(low), int(high) if high else None if dots else int(low)


def _entries(text: str, kind: SizeKind, use: Use) -> Iterator[tuple[str, Any]]:
    position = 0
    while position == 0 or position < len(text):
        match = _ENTRY.match(text, position)
        if match is None:
            raise _unreadable(text[position:], kind, use)
        name, sizes = match.groups()
        rows = [[read_range(size) for size in row.split("x")] for row in sizes.split(",")]
        lows = [[low for low, _ in row] for row in rows]
        if ".." in sizes:
            if not use.ranges or len(rows) > 1:
                raise _unreadable(match[0], kind, use)
            highs = [high for _, high in rows[0]]
            lows = [*lows, highs, highs]  # type: ignore[list-item]  # an end is always there
        yield name, lows
        position = match.end()


def _rows(name: str, sizes: Any, kind: SizeKind, use: Use) -> Rows:
    rows = list(sizes) if isinstance(sizes, Sequence) else [sizes]
    if kind is INPUT and all(isinstance(size, int) for size in rows):
        rows = [rows]
    shapes = tuple(tuple(row) if isinstance(row, Sequence) else (row,) for row in rows)
    every = [size for shape in shapes for size in shape]
    bad = not shapes or any(type(size) is not int or size < use.least for size in every)
    if use.ranges and kind is DIMENSION and len(shapes) == 2:
        shapes = (*shapes, shapes[1])
    bad |= use.ranges and len(shapes) not in (1, 3)
    if bad or (kind is DIMENSION and any(len(shape) != 1 for shape in shapes)):
        raise _unreadable(f"{name}={','.join(map(shape_text, shapes))}", kind, use)
    return shapes * 3 if use.ranges and len(shapes) == 1 else shapes


def _unreadable(part: str, kind: SizeKind, use: Use) -> UsageError:
    option_name, samples = "--dims", ("1", "4", "8")
    if kind is INPUT:
        option_name, samples = "--shapes", ("1x1", "4x128", "8x2048")
    several = ",".join(samples[: 3 if use.ranges else min(use.most_points, 2)])
    fix = f"write NAME={several};NAME={samples[0]} with sizes from {use.least}"
    return UsageError(
        f"A part of {option_name} cannot be read.",
        found=quoted(part.strip(), 200),
        fix=fix + (", smallest, usual and largest or a single one" if use.ranges else ""),
    )


def shapes_option(use: Use, **facts: Any) -> Any:
    """Make the field ``shapes`` of a record; what cannot be read is told before any model is."""

    def readable(value: Shapes) -> Shapes:
        # Every range is a profile of its own, so an input may stand in several.
        for part in [value] if isinstance(value, str | Mapping) or not use.ranges else value:
            read(part, None, use)
        return value

    return option(None, read=readable, **facts)


def dims_option(use: Use) -> Any:
    """Make the field ``dims`` of a record."""

    def readable(value: Dims) -> Dims:
        read(None, value, use)
        return value

    sample = "batch=1,4,8 sequence=1..128" if use.ranges else "batch=4 sequence=128"
    what = "Smallest, usual and largest size" if use.ranges else "Sizes"
    help_ = f'{what} by the name of a dimension, e.g. "{sample}"; sums, as past + sequence, follow.'
    return option(None, read=readable, metavar="NAME=SIZE ...", help=help_)

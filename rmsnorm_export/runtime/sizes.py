"""One grammar of sizes for every command: by input, or by the name of a dimension.

    shapes = entry { ";" entry }          ids=1x16,4x128;mask=4x128
    entry  = input "=" shape { "," shape }
    shape  = size { "x" size }
    dims   = entry { (" " | ";") entry }  batch=1,4,8 sequence=1..128
    entry  = dimension "=" size { "," size }
    size   = NUMBER | LOW ".." HIGH

As points, the n-th sizes of all entries belong together, and a single one goes with all. As ranges,
an input has one shape or three: smallest, usual and largest; a dimension has one size, three, or
two, of which the larger is the usual one. ``LOW..HIGH`` is a range whose usual size is the largest.

What sizes mean for the inputs of a model is said in ``input_sizes``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import option
from rmsnorm_export.printable import quoted, short

Shape = tuple[int, ...]
Rows = tuple[Shape, ...]

ShapesByName = Mapping[str, Sequence[int | Sequence[int]]]
Shapes = str | ShapesByName | Sequence[str | ShapesByName]
"""One shape or several of each input, as text or by name; or a sequence of these."""

DimsByName = Mapping[str, int | Sequence[int | Sequence[int]]]
Dims = str | DimsByName | Sequence[str | DimsByName]
"""One size or several of each dimension, as text or by name; or a sequence of these."""


@dataclasses.dataclass(frozen=True, slots=True)
class SizeKind:
    """What has sizes.

    Attributes:
        noun: for it.
        size: what it is given.
        separator: between two of them.
        samples: smallest, usual and largest.
    """

    noun: str
    size: str
    separator: str
    samples: tuple[str, str, str]


INPUT = SizeKind("input", "shape", ";", ("1x1", "4x128", "8x2048"))
DIMENSION = SizeKind("dimension", "size", " ", ("1", "4", "8"))

Given = dict[tuple[SizeKind, str], Rows]
"""What was given: shapes of inputs, and sizes of dimensions as shapes of rank 1."""

_Entry = tuple[str, Sequence[Sequence[Any]], str]
"""Name, rows, and the part that says so."""

_ONE_SIZE = r"[0-9]{1,18}(?:\s*\.\.\s*[0-9]{1,18})?"
_VALUE = re.compile(rf"=\s*({_ONE_SIZE}(?:(?:x|\s*,\s*){_ONE_SIZE})*)(?=[\s;]|$)")
_RANGE = re.compile(r"([0-9]{1,18})(?:\s*(\.\.)\s*([0-9]{1,18})?)?")
_BETWEEN = "; \t\r\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a command takes sizes for.

    Attributes:
        ranges: as ranges; else as points.
        least, largest: size.
        most_points: how many points may be given.
        most_elements: how many elements an input may have; None: any number.
        option: that gives the shapes of inputs.
    """

    ranges: bool = False
    least: int = 0
    largest: int = 2**63 - 1
    most_points: int = 3
    most_elements: int | None = None
    option: str = "--shapes"

    def option_for(self, kind: SizeKind) -> str:
        """The option that gives the sizes of one kind of thing."""
        return self.option if kind is INPUT else "--dims"


ONE_POINT = Use(most_points=1)
"""What ``verify`` takes."""

POINTS = Use(least=1, most_points=32, most_elements=2**28)
"""What ``bench`` takes; 1 GiB of one input in f32."""

RANGES = Use(ranges=True, largest=2**31 - 1)
"""What engines take; TensorRT takes no larger size."""

DECLARED = Use(ranges=True, least=1)
"""What ``export`` takes."""


def shape_text(shape: Sequence[object]) -> str:
    """``4x128``."""
    return "x".join(map(str, shape)) or "scalar"


def rows_text(rows: Rows) -> str:
    """``1x1,4x128,8x2048``; one shape where all are the same."""
    return ",".join(map(shape_text, rows if len(set(rows)) > 1 else rows[:1]))


def read(shapes: Shapes | None, dims: Dims | None, use: Use) -> Given:
    """What ``shapes`` and ``dims`` say; as ranges, three rows for each.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    given: Given = {}
    values: tuple[tuple[SizeKind, Any], ...] = ((DIMENSION, dims), (INPUT, shapes))
    for kind, value in values:
        before = len(given)
        for part in [value] if isinstance(value, str | Mapping) else value or ():
            if isinstance(part, str):
                entries = _read_text(part, kind, use)
            else:
                entries = _read_values(part, kind)
            for name, rows, source in entries:
                if (kind, name) in given:
                    what = f"One {kind.noun} is given twice in {use.option_for(kind)}."
                    raise _reading_error(what, name, kind, use)
                given[kind, name] = _checked_rows(name, rows, source, kind, use)
        # Ranges by name may be empty: all sizes of the model are fixed.
        may_be_empty = value is None or (use.ranges and not isinstance(value, str))
        if len(given) == before and not may_be_empty:
            what = f"{use.option_for(kind)} describes no {kind.noun}."
            raise _reading_error(what, repr(value), kind, use)
    return given


def read_range(text: str) -> tuple[int, int | None]:
    """Smallest and largest size of ``4``, ``1..8`` or, without an end, ``1..``.

    Raises:
        ValueError: it is none of these.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    low, dots, high = match.groups()
    return int(low), int(high) if high else None if dots else int(low)


def _reading_error(what: str, part: str, kind: SizeKind, use: Use) -> UsageError:
    """Sizes that cannot be read, and how to write them."""
    several = ",".join(kind.samples[: 3 if use.ranges else min(use.most_points, 2)])
    fix = f"write NAME={several}{kind.separator}NAME={kind.samples[0]}"
    fix += ", smallest, usual and largest or a single one" if use.ranges else ""
    return UsageError(what, found=short(part, 200) or "nothing", fix=fix)


def _read_text(text: str, kind: SizeKind, use: Use) -> Iterator[_Entry]:
    start = 0
    for match in _VALUE.finditer(text):
        name, source = text[start : match.start()].strip(_BETWEEN), match[1]
        start = match.end()
        # The name of an input may hold "=" and ";", but "a=1x;b" has a shape that cannot be read.
        wrong = name.rpartition(";")[0] if kind is INPUT else name
        if "=" in wrong or not name:
            raise _unreadable(wrong or match[0], kind, use)
        rows = [[read_range(size) for size in row.split("x")] for row in source.split(",")]
        lows = [[low for low, _ in row] for row in rows]
        if ".." not in source:
            yield name, lows, source
        elif use.ranges and len(rows) == 1:
            highs = [high for _, high in rows[0]]
            yield name, [*lows, highs, highs], source
        else:
            raise _unreadable(f"{name}={source}", kind, use)
    if rest := text[start:].strip(_BETWEEN):
        raise _unreadable(rest, kind, use)


def _read_values(given: Mapping[str, Any], kind: SizeKind) -> Iterator[_Entry]:
    for name, value in given.items():
        rows = list(value) if isinstance(value, Sequence) else [value]
        if kind is INPUT and all(isinstance(size, int) for size in rows):
            rows = [rows]
        yield name, [row if isinstance(row, Sequence) else [row] for row in rows], repr(value)


def _checked_rows(
    name: str, rows: Sequence[Sequence[Any]], source: str, kind: SizeKind, use: Use
) -> Rows:
    shapes: Rows = tuple(map(tuple, rows))
    sizes = [size for shape in shapes for size in shape]
    if not shapes or any(type(size) is not int or size < use.least for size in sizes):
        found = f"{source} is no row of sizes, which are numbers from {use.least}"
        raise _reading_error(_cannot_be_read(name, kind), found, kind, use)
    if not use.ranges:
        return shapes
    if len(shapes) == 2 and kind is DIMENSION:
        shapes = (*shapes, shapes[1])
    if len(shapes) not in (1, 3):
        what = f"{kind.noun.capitalize()} {quoted(name)} has {len(shapes)} {kind.size}s"
        raise _reading_error(f"{what}, not one or three.", source, kind, use)
    return shapes * 3 if len(shapes) == 1 else shapes


def _unreadable(part: str, kind: SizeKind, use: Use) -> UsageError:
    name, equals, _ = part.rpartition("=")
    what = f"A part of {use.option_for(kind)} names no {kind.noun}."
    if equals and name.strip():
        what = _cannot_be_read(name.strip(), kind)
    return _reading_error(what, quoted(part, 200), kind, use)


def _cannot_be_read(name: str, kind: SizeKind) -> str:
    return f"A {kind.size} of {kind.noun} {quoted(name)} cannot be read."


def shapes_option(use: Use, **facts: Any) -> Any:
    """The field ``shapes`` of a record; what cannot be read is told before any model is."""

    def readable(value: Shapes) -> Shapes:
        # Every range is a profile of its own, so an input may stand in several.
        parts = [value] if isinstance(value, str | Mapping) or not use.ranges else value
        for part in parts:
            read(part, None, use)
        return value

    return option(None, read=readable, **facts)


def dims_option(use: Use) -> Any:
    """The field ``dims`` of a record."""

    def readable(value: Dims) -> Dims:
        read(None, value, use)
        return value

    sums = "; sums of names, such as past + sequence, are computed."
    if use is DECLARED:
        sample, what, rest = (
            "batch=1..8 seq=1..2048",
            "Ranges of dimensions that --shapes names",
            ".",
        )
    elif use.ranges:
        sample, rest = "batch=1,4,8 sequence=1..128", sums
        what = "Smallest, usual and largest size by the name of a dimension, in every input"
    else:
        sample = "batch=4 sequence=128" if use.most_points == 1 else "batch=1,4 sequence=16,128"
        what, rest = "Sizes by the name of a dimension, in every input", sums
    return option(
        None,
        read=readable,
        metavar="NAME=SIZE ...",
        help=f'{what}, e.g. "{sample}"{rest}',
    )

"""Sizes of a model's inputs: one grammar for every command, checked and completed by names.

    shapes = entry { (";" | " ") entry }  ids=1x16,4x128;mask=4x128
    entry  = input "=" shape { "," shape }
    shape  = size { "x" size }
    dims   = entry { (";" | " ") entry }  batch=1,4,8 sequence=1..128
    entry  = dimension "=" size { "," size }
    size   = NUMBER | LOW ".." HIGH

As points, the n-th sizes of all entries belong together, and a single one goes with all. As ranges,
an entry has one row or three: smallest, usual and largest; ``LOW..HIGH`` is a range whose usual
size is the largest. A name with ``=`` or ``;`` in it can be given by Python alone, which takes
mappings. Dimensions that a model declares as expressions, as ``past + sequence``, follow.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal

from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import option
from rmsnorm_export.printable import plural, quoted, short

if TYPE_CHECKING:
    from rmsnorm_export.op.dtypes import Array
    from rmsnorm_export.system.files import StrPath

    Inputs = StrPath | Mapping[str, Array]
else:
    Inputs = Any  # NumPy is not loaded for --help

Shape = tuple[int, ...]
Rows = tuple[Shape, ...]

ShapesByName = Mapping[str, Sequence[int | Sequence[int]]]
Shapes = str | ShapesByName | Sequence[str | ShapesByName]
"""One shape or several of each input, as text or by name; or a sequence of these."""

DimsByName = Mapping[str, int | Sequence[int | Sequence[int]]]
Dims = str | DimsByName | Sequence[str | DimsByName]
"""One size or several of each dimension, as text or by name; or a sequence of these."""

SizeKind = Literal["input", "dimension"]

Given = dict[tuple[SizeKind, str], Rows]
"""Shapes of inputs, and sizes of dimensions as shapes of rank 1."""

Size = int | str | None
"""As a model file declares it: a number, a name or an expression, or nothing."""

Bound = dict[str | int, int]
"""Sizes by the name of a dimension; a dimension without a name goes by its axis."""

Point = tuple[str, dict[str, Shape]]
"""Its label, e.g. ``ids=1x16``, and the shapes of all inputs, which belong together."""

Profile = tuple[dict[str, Shape], ...]
"""The smallest, the usual and the largest shape of every input."""

LARGEST = 2**31 - 1
"""Size of a dimension; TensorRT takes no larger one."""

# A longer expression is no size that anyone wrote or any exporter derived.
_LONGEST_EXPRESSION = 200
_NAME = re.compile(r"[^\W\d][\w.]*(?![\w.]|\s*\()")

_SIZE = r"[0-9]{1,18}(?:\s*\.\.\s*[0-9]{1,18})?"
_ENTRY = re.compile(
    rf"[\s;]*([^\s=;][^=;]*?)\s*=\s*({_SIZE}(?:(?:x|\s*,\s*){_SIZE})*)(?=[\s;]|$)[\s;]*"
)
_SIZES = re.compile(rf"{_SIZE}(?:(?:x|\s*,\s*){_SIZE})*")
_TOKENS, _RANK = "input_ids", 2
_LOW, _HIGH = re.compile(r"[0-9]+\s*\.\."), re.compile(r"\.\.\s*[0-9]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The purpose of sizes in a command.

    Attributes:
        ranges: as ranges; else as points.
        least: size.
        most_points: how many points may be given.
    """

    ranges: bool = False
    least: int = 0
    most_points: int = 3


ONE_POINT = Use(most_points=1)
"""Of ``verify``."""

POINTS = Use(least=1, most_points=32)
"""Of ``bench``."""

RANGES = Use(ranges=True)
"""Of engines."""


def shape_text(shape: Sequence[object]) -> str:
    """Write a shape as ``4x128``."""
    return "x".join(map(str, shape)) or "scalar"


def read(shapes: Shapes | None, dims: Dims | None, use: Use) -> Given:
    """Read ``shapes`` and ``dims``; as ranges, three rows for each.

    Raises:
        UsageError: naming the part that cannot be read, and how to write it.
    """
    entries: Given = {}
    values: dict[SizeKind, Any] = {"dimension": dims, "input": shapes}
    for kind, value in values.items():
        for part in [value] if isinstance(value, str | Mapping) else value or ():
            pairs = _entries(part, kind, use) if isinstance(part, str) else part.items()
            for name, sizes in pairs:
                if (kind, name) in entries:
                    raise _unreadable(f"{name} is given twice", kind, use)
                entries[kind, name] = _rows(name, sizes, kind, use)
    return entries


def _entries(text: str, kind: SizeKind, use: Use) -> Iterator[tuple[str, Any]]:
    position = 0
    while position == 0 or position < len(text):
        match = _ENTRY.match(text, position)
        if match is None:
            raise _unreadable(text[position:], kind, use)
        name, sizes = match.groups()
        if ".." in sizes:
            if not use.ranges or "," in sizes:
                raise _unreadable(match[0], kind, use)
            low, high = _HIGH.sub("", sizes), _LOW.sub("", sizes)
            sizes = f"{low},{high},{high}"
        yield name, [tuple(map(int, row.split("x"))) for row in sizes.split(",")]
        position = match.end()


def _rows(name: str, sizes: Any, kind: SizeKind, use: Use) -> Rows:
    rows = list(sizes) if isinstance(sizes, Sequence) else [sizes]
    if kind == "input" and all(isinstance(size, int) for size in rows):
        rows = [rows]
    shapes = tuple(tuple(row) if isinstance(row, Sequence) else (row,) for row in rows)
    numbers = all(type(size) is int and size >= use.least for shape in shapes for size in shape)
    count = len(shapes) in (1, 3) if use.ranges else bool(shapes)
    scalars = kind == "input" or all(len(shape) == 1 for shape in shapes)
    if not (numbers and count and scalars):
        raise _unreadable(f"{name}={','.join(map(shape_text, shapes))}", kind, use)
    return shapes * 3 if use.ranges and len(shapes) == 1 else shapes


def _unreadable(part: str, kind: SizeKind, use: Use) -> UsageError:
    name, sample = ("--shapes", "4x128") if kind == "input" else ("--dims", "4")
    rows = "; a single one, or smallest, usual and largest with commas" if use.ranges else ""
    fix = f"write NAME={sample};NAME={sample} with sizes from {use.least}{rows}"
    if _SIZES.fullmatch(part.strip()):
        named = "an input" if kind == "input" else "a dimension"
        fix = f"put the name of {named} before it: NAME={part.strip()}"
    found = quoted(part.strip(), 200)
    return UsageError(f"A part of {name} cannot be read.", found=found, fix=fix)


def shapes_option(use: Use, **facts: Any) -> Any:
    """Make the field ``shapes`` of a record, which is checked before any model is read."""

    def readable(value: Shapes) -> Shapes:
        # Every range is a profile of its own, so an input may be in several.
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


def is_fixed(size: Size) -> bool:
    """Return whether a declared size is a number; exporters write a negative one if dynamic."""
    return isinstance(size, int) and size >= 0


def agree(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two shapes are of one rank, and the same where both have numbers."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(x == y for x, y in pairs if is_fixed(x) and is_fixed(y))


def symbol_of(size: Size, axis: int) -> str | int:
    """Return the key of a dynamic size in ``Bound``."""
    return size if isinstance(size, str) and size else axis


def size_of(size: Size, axis: int, bound: Mapping[str | int, int]) -> int | None:
    """Return the size as a number; None where the names that are known do not tell it."""
    if isinstance(size, int) and is_fixed(size):
        return size
    symbol = symbol_of(size, axis)
    if symbol in bound or isinstance(symbol, int):
        return bound.get(symbol)
    if len(symbol) > _LONGEST_EXPRESSION or "**" in symbol:  # a power may not fit into memory
        return None
    import onnx_ir as ir

    try:
        # Numbers for names first: to simplify what has names can take minutes.
        numbers = _NAME.sub(lambda name: str(bound[name[0]]), symbol)
        value = ir.SymbolicDim(numbers).evaluate({})
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return value if isinstance(value, int) and value >= 0 else None


def sized(shape: Sequence[Size], bound: Mapping[str | int, int]) -> Shape | None:
    """Return the shape as numbers; None where the names that are known do not tell it."""
    sizes = [size_of(size, axis, bound) for axis, size in enumerate(shape)]
    numbers = tuple(size for size in sizes if size is not None)
    return numbers if len(numbers) == len(sizes) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """An input or output of a model, as its file or its runtime declares it.

    Attributes:
        name: of the tensor.
        dtype: e.g. ``int64``, ``bfloat16`` or ``string``.
        shape: sizes, with a name or None for a dynamic one; None when not even the rank is known.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...] | None

    def text(self) -> str:
        """Return ``'ids' int64 [batch, 7]``, safe to print."""
        if self.shape is None:
            return f"{quoted(self.name)} {self.dtype} of unknown rank"
        sizes = ("?" if size in (None, "") else short(str(size)) for size in self.shape)
        return f"{quoted(self.name)} {self.dtype} [{', '.join(sizes)}]"


Signature = Mapping[str, Declared]
"""The inputs of a model, by name."""


def sized_names(inputs: Iterable[Declared]) -> set[tuple[SizeKind, str]]:
    """Return the names that take sizes: inputs, dimensions, expressions and names in them.

    Args:
        inputs: of a model.
    """
    names: set[tuple[SizeKind, str]] = set()
    for item in inputs:
        names.add(("input", item.name))
        for size in item.shape or ():
            if isinstance(size, str) and size:
                names.update(("dimension", name) for name in (size, *_NAME.findall(size)))
    return names


def size_points(
    inputs: Signature, shapes: Shapes | None, dims: Dims | None, use: Use
) -> list[Point]:
    """Return the shape of every input at each point; of ranges, smallest, usual and largest.

    Raises:
        UsageError: an input or a dimension that the model does not have; a rank or a fixed size
            that differs; sizes out of bounds or out of order; a dimension of two sizes; a dynamic
            size that is not known.
    """
    entries, points = _fitting(inputs, shapes, dims, use), []
    inputs = _with_masks(inputs, {name for _, name in entries})
    for number in range(3 if use.ranges else max(map(len, entries.values()), default=1)):
        rows = {key: rows[number if len(rows) > 1 else 0] for key, rows in entries.items()}
        label = "; ".join(f"{name}={shape_text(row)}" for (_, name), row in rows.items())
        points.append((label, _complete(inputs, *_bind(inputs, rows, use), use)))
    for name, item in inputs.items() if use.ranges else ():
        ends = [shapes[name] for _, shapes in points]
        sizes = zip(*ends, strict=True)
        if not all(low <= opt <= high and (opt or not high) for low, opt, high in sizes):
            raise _misfit(item, ends, "sizes are not min <= opt <= max, opt above 0")
    return points


def size_profiles(
    inputs: Signature, shapes: Shapes | None, dims: Dims | None
) -> tuple[Profile, ...]:
    """Return the profiles that are asked for.

    Args:
        inputs: of the model.
        shapes: of one profile, or a sequence of these.
        dims: sizes by name of a dimension, which all profiles have.

    Raises:
        UsageError: as ``size_points``.
    """
    each = [shapes] if isinstance(shapes, str | Mapping | None) else shapes
    return tuple(tuple(at for _, at in size_points(inputs, one, dims, RANGES)) for one in each)


def _fitting(inputs: Signature, shapes: Shapes | None, dims: Dims | None, use: Use) -> Given:
    """Return the given sizes, for names that the model has."""
    entries = read(shapes, dims, use)
    names = sized_names(inputs.values())
    for kind, name in entries:
        if (kind, name) not in names:
            found = f"its inputs are {'; '.join(one.text() for one in inputs.values()) or 'none'}"
            named = any(own == kind for own, _ in names)
            fix = "use one of these names" if named else "omit it: every size is fixed"
            raise UsageError(f"The model has no {kind} {quoted(name)}.", found=found, fix=fix)
    counts = {len(rows) for rows in entries.values()} - {1}
    if len(counts) > 1 or max(counts, default=1) > use.most_points:
        found = ", ".join(
            f"{name}: {plural(len(rows), 'size')}" for (_, name), rows in entries.items()
        )
        fix = f"give as many of each, or one that goes with all; {use.most_points} at most"
        for (kind, name), rows in entries.items():
            if kind == "input" and len(rows) > 1 and {len(row) for row in rows} == {1}:
                shape = shape_text([size for row in rows for size in row])
                fix = f"for one shape of several sizes write {name}={shape}; or {fix}"
        raise UsageError("The numbers of sizes do not go together.", found=found, fix=fix)
    return entries


def _bind(
    inputs: Signature, rows: Mapping[tuple[SizeKind, str], Shape], use: Use
) -> tuple[dict[str, Shape], Bound]:
    """Return the shapes that are given for one point, and the sizes of names."""
    bound: Bound = {name: row[0] for (kind, name), row in rows.items() if kind == "dimension"}
    shapes = {name: row for (kind, name), row in rows.items() if kind == "input"}
    for name, row in shapes.items():
        declared = inputs[name].shape or ()
        if declared and len(declared) != len(row):
            raise _misfit(inputs[name], [row], f"the rank is {len(declared)}")
        for axis, (size, value) in enumerate(zip(declared, row, strict=False)):
            symbol = symbol_of(size, axis)
            if is_fixed(size):
                if size != value:
                    raise _misfit(inputs[name], [row], f"dimension {axis} is {size}")
            elif use.ranges and isinstance(symbol, int):
                continue  # a range is not guessed for what has no name
            elif bound.setdefault(symbol, value) != value and isinstance(symbol, str):
                found = f"{bound[symbol]}, and {value} in input {quoted(name)}"
                fix = "the model gives both one name, so they are one size: give one"
                raise UsageError(f"Dimension {quoted(symbol)} has two sizes.", found=found, fix=fix)
    return shapes, bound


def _complete(
    inputs: Signature, shapes: Mapping[str, Shape], bound: Bound, use: Use
) -> dict[str, Shape]:
    """Return a shape for every input: those given, and those that follow."""
    complete = {}
    for name, item in inputs.items():
        shape = shapes.get(name) or sized((None,) if item.shape is None else item.shape, bound)
        if shape is None:
            ranges = "smallest, usual and largest" if use.ranges else "their"
            fix = f"give {ranges} sizes with --dims, or shapes of the inputs with --shapes"
            raise UsageError("Inputs with dynamic sizes need sizes.", found=item.text(), fix=fix)
        if max(shape, default=0) > LARGEST:
            raise _misfit(item, [shape], "it is too large")
        complete[name] = shape
    return complete


def _misfit(item: Declared, rows: Sequence[Shape], reason: str) -> UsageError:
    shown = ",".join(map(shape_text, dict.fromkeys(rows)))
    found = f"{shown}: {reason}; the model has {item.text()}"
    fix = "give sizes that fit with --shapes or --dims, or omit them where all are fixed"
    return UsageError(f"A shape does not fit input {quoted(item.name)}.", found=found, fix=fix)


def input_shapes(
    inputs: Signature,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    *,
    usual: Mapping[str, Sequence[int]] | None = None,
    sizes: Sequence[int],
) -> dict[str, Shape]:
    """Return a shape for every input: as given, else as names tell it, as usual, or small.

    Args:
        inputs: of the model.
        shapes: of single inputs.
        dims: sizes by name of a dimension.
        usual: shapes of inputs that are not given otherwise.
        sizes: for names in order of appearance; the last one for all further names, and for
            expressions that cannot be computed from names.

    Raises:
        UsageError: ``shapes`` or ``dims`` cannot be read or do not fit the model.
    """
    entries = _fitting(inputs, shapes or None, dims or None, ONE_POINT)
    inputs = _with_masks(inputs, {name for _, name in entries})
    rows = {key: rows[0] for key, rows in entries.items()}
    complete, bound = _bind(inputs, rows, ONE_POINT)
    shapes_so_far = {}
    for name, item in inputs.items():
        shape = list(item.shape or ())
        for axis, (size, value) in enumerate(zip(shape, (usual or {}).get(name, ()), strict=False)):
            if size_of(size, axis, bound) is None and isinstance(size, str) and size:
                bound[size] = value
            elif size_of(size, axis, bound) is None:
                shape[axis] = value
        shapes_so_far[name] = complete.get(name, shape)
    places = [place for shape in shapes_so_far.values() for place in enumerate(shape)]
    following = chain(sizes, repeat(sizes[-1]))
    for axis, size in places:
        symbol = symbol_of(size, axis)
        simple = isinstance(symbol, int) or symbol.isidentifier()
        if simple and size_of(size, axis, bound) is None:
            bound[symbol] = next(following)
    for axis, size in places:
        if size_of(size, axis, bound) is None:
            bound[symbol_of(size, axis)] = sizes[-1]
    return {name: sized(shape, bound) or () for name, shape in shapes_so_far.items()}


def _with_masks(inputs: Signature, given: Collection[str]) -> Signature:
    """Return the inputs, each mask over what was read before and ``input_ids``, if no size says so.

    Exporters of decoders give its length a name of its own; a mask of another length is refused.

    Args:
        inputs: of a model.
        given: names of inputs and dimensions that have sizes.
    """
    ranks = {name: len(item.shape or ()) for name, item in inputs.items()}
    masks = {n for n in inputs if n.endswith("mask") and ranks[n] == _RANK} - {*given}
    others = [item.shape or () for name, item in inputs.items() if name not in masks]
    before = {shape[_RANK] for shape in others if len(shape) == 2 * _RANK}
    if not masks or ranks.get(_TOKENS) != _RANK or len(before) > 1:
        return inputs
    rows, length = inputs[_TOKENS].shape or ()
    if not all(sizes := [*before, length]):
        return inputs
    whole = rows, " + ".join(map(str, sizes)) if before else length
    taken = set(given).union(*others)

    def over_all(item: Declared) -> Declared:
        own = zip(item.shape or (), whole, strict=True)
        shape = (new if isinstance(old, str) and old not in taken else old for old, new in own)
        return dataclasses.replace(item, shape=tuple(shape))

    return {name: over_all(one) if name in masks else one for name, one in inputs.items()}

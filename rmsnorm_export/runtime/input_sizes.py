"""Sizes for the inputs of a model: checked against what it declares, and completed from names."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain, repeat
from typing import Any, TypeVar

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.sizes import (
    DIMENSION,
    INPUT,
    Dims,
    Given,
    Rows,
    Shape,
    Shapes,
    SizeKind,
    Use,
    read,
    rows_text,
    shape_text,
)

Size = int | str | None
"""As a model file declares it: a number, a name or an expression, or nothing."""

Known = dict[str | int, int]
"""Sizes by the name of a dimension; a dimension without a name goes by its axis."""

# A longer expression is no size that anyone wrote or any exporter derived.
_LONGEST_EXPRESSION = 200

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "max": max,
    "min": min,
}


def is_fixed(size: Size) -> bool:
    """Whether a declared size is a number; exporters write a negative one for a dynamic size."""
    return isinstance(size, int) and size >= 0


def symbol_of(size: Size, axis: int) -> str | int:
    """What a dynamic size goes by in ``Known``."""
    return size if isinstance(size, str) and size else axis


def symbols_of(shape: Iterable[Size]) -> list[str | int]:
    """What the dynamic sizes of a shape go by."""
    return [symbol_of(size, axis) for axis, size in enumerate(shape) if not is_fixed(size)]


def size_of(size: Size, axis: int, known: Mapping[str | int, int]) -> int | None:
    """The size as a number; None where the names that are known do not tell it."""
    if isinstance(size, int) and size >= 0:
        return size
    symbol = symbol_of(size, axis)
    if symbol in known or isinstance(symbol, int):
        return known.get(symbol)
    try:
        value = _computed(_parsed(symbol), known)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return int(value) if value >= 0 and value == int(value) else None


def sized(shape: Sequence[Size], known: Mapping[str | int, int]) -> tuple[int, ...] | None:
    """The shape as numbers; None where the names that are known do not tell it."""
    sizes = [size_of(size, axis, known) for axis, size in enumerate(shape)]
    numbers = tuple(size for size in sizes if size is not None)
    return numbers if len(numbers) == len(sizes) else None


def names_in(size: Size) -> set[str]:
    """The names that an expression is computed from, and the whole of it, which is a name, too."""
    if not isinstance(size, str) or not size:
        return set()
    try:
        tree = _parsed(size)
    except ValueError:
        return {size}
    functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {size} | {node.id for node in names if node not in functions}


def fill(known: Known, shapes: Iterable[Sequence[Size]], sizes: Sequence[int]) -> None:
    """Give a size to every dimension that has none.

    Args:
        known: is added to.
        shapes: as declared.
        sizes: for names in order of appearance; the last one for all further names, and for
            expressions that cannot be computed from names.
    """
    dynamic = [
        (size, axis, symbol_of(size, axis))
        for shape in shapes
        for axis, size in enumerate(shape)
        if not is_fixed(size)
    ]
    following = chain(sizes, repeat(sizes[-1]))
    for _, _, symbol in dynamic:
        if symbol not in known and (isinstance(symbol, int) or symbol.isidentifier()):
            known[symbol] = next(following)
    for size, axis, symbol in dynamic:
        if size_of(size, axis, known) is None:
            known[symbol] = sizes[-1]


@functools.lru_cache(maxsize=256)
def _parsed(expression: str) -> ast.expr:
    """The syntax tree of an expression; ValueError for what is none."""
    if len(expression) > _LONGEST_EXPRESSION:
        raise ValueError("no expression that anyone wrote")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("a name that is no expression") from error


def _computed(tree: ast.expr, known: Mapping[str | int, int]) -> Any:
    """The exact value of an expression, a division included."""
    match tree:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.Name(id=name):
            return Fraction(known[name])
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_computed(left, known), _computed(right, known))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            function = _FUNCTIONS[name.lower()]
            return Fraction(function(*(_computed(argument, known) for argument in arguments)))
    raise ValueError("not made of names, numbers, sums and products")


_Result = TypeVar("_Result")

Point = tuple[str, dict[str, Shape]]
"""What was given for it, e.g. ``ids=1x16``; and the shapes of all inputs, which belong together."""


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
        """``'ids' int64 [batch, 7]``, safe to print."""
        if self.shape is None:
            return f"{quoted(self.name)} {self.dtype} of unknown rank"
        sizes = ("?" if size in (None, "") else short(str(size)) for size in self.shape)
        return f"{quoted(self.name)} {self.dtype} [{', '.join(sizes)}]"


class InputSizes:
    """The sizes that the inputs of a model are to have.

    Args:
        inputs: of the model.
        use: what the sizes are for.
    """

    def __init__(self, inputs: Iterable[Declared], use: Use) -> None:
        self._use = use
        self._inputs = {item.name: item for item in inputs}
        # A session says () for a scalar, and for a rank that it does not know.
        self._declared = {
            name: item.shape if use.ranges else item.shape or None
            for name, item in self._inputs.items()
        }
        unknown: tuple[Size, ...] = (None,) if use.ranges else ()
        self._shapes = {
            name: unknown if shape is None else shape for name, shape in self._declared.items()
        }
        sizes = (size for shape in self._shapes.values() for size in shape)
        self._names = dict.fromkeys(name for size in sizes for name in names_in(size))

    def points(self, shapes: Shapes | None, dims: Dims | None = None) -> list[Point]:
        """The shape of every input at each point; of ranges, the smallest, usual and largest.

        Raises:
            UsageError: an input or a dimension that the model does not have; a rank or a fixed size
                that differs; sizes out of bounds or out of order; a dimension of two sizes; a
                dynamic size that is not known.
        """
        return self._checked(shapes, dims, self._complete)

    def known(self, shapes: Shapes | None, dims: Dims | None) -> tuple[dict[str, Shape], Known]:
        """The shapes of the inputs that are given, and the sizes of names, of a single point.

        Raises:
            UsageError: as ``points``, but a dynamic size may be unknown.
        """
        return self._checked(shapes, dims, lambda given: self._at(given, 0))

    def _checked(
        self, shapes: Shapes | None, dims: Dims | None, use_of: Callable[[Given], _Result]
    ) -> _Result:
        """Return what follows from what is given, after every check."""
        try:
            given = read(shapes, dims, self._use)
            self._check(given)
            return use_of(given)
        except UsageError as error:
            fix = error.fix
            if not any(map(symbols_of, self._shapes.values())):
                fix = f"omit {self._use.option}: the model fixes every size"
            raise UsageError(error.what, found=error.found, fix=fix) from error

    def _count(self, given: Given) -> int:
        return 3 if self._use.ranges else max(map(len, given.values()), default=1)

    def _at(self, given: Given, number: int) -> tuple[dict[str, Shape], Known]:
        """The shapes that are given for one point, and the sizes of names."""
        at = {key: _row_at(rows, number) for key, rows in given.items()}
        known: Known = {name: row[0] for (kind, name), row in at.items() if kind is DIMENSION}
        shapes = {name: row for (kind, name), row in at.items() if kind is INPUT}
        for name, row in shapes.items():
            # The rank may be unknown. A range is not guessed for a dimension without a name.
            for axis, (size, value) in enumerate(zip(self._shapes[name], row, strict=False)):
                symbol = symbol_of(size, axis)
                if not is_fixed(size) and (isinstance(symbol, str) or not self._use.ranges):
                    known.setdefault(symbol, value)
        return shapes, known

    def _complete(self, given: Given) -> list[Point]:
        """The points: shapes that are given, and those that follow."""
        points, missing = [], {}
        for number in range(self._count(given)):
            shapes, known = self._at(given, number)
            for name, item in self._inputs.items():
                if name not in shapes:
                    computed = sized(self._shapes[name], known)
                    if computed is None:
                        missing[name] = item.text()
                    shapes[name] = computed or ()
            label = "; ".join(
                f"{k}={shape_text(_row_at(v, number))}" for (_, k), v in given.items()
            )
            points.append((label, shapes))
        if missing:
            ranges = self._use.ranges
            sizes = f"{'smallest, usual and largest' if ranges else 'their'} sizes"
            raise UsageError(
                f"Inputs with dynamic sizes need a {'range' if ranges else 'shape'}.",
                found="; ".join([*missing.values()][:5]) + (" ..." if len(missing) > 5 else ""),
                fix=f"give {sizes} with --dims, or shapes of the inputs with {self._use.option}",
            )
        for name in self._inputs:
            problem = self._misfit(INPUT, name, tuple(shapes[name] for _, shapes in points))
            if problem is not None:
                raise problem
        return points

    def _check(self, given: Given) -> None:
        """Raise the first thing that does not fit the model."""
        count = self._count(given)
        if count > self._use.most_points:
            raise UsageError(
                "The grid of shapes is too large.",
                found=f"{count} shapes, at most {self._use.most_points}",
                fix="give fewer shapes, or run the command several times",
            )
        for (kind, name), rows in given.items():
            known = self._inputs if kind is INPUT else self._names
            if name not in known:
                nearest = "".join(difflib.get_close_matches(name, known, n=1, cutoff=0.5))
                raise self._unknown(kind, name, nearest)
            if (problem := self._misfit(kind, name, rows, count)) is not None:
                raise problem
        self._check_conflicts(given)

    def _unknown(self, kind: SizeKind, name: str, nearest: str) -> UsageError:
        if kind is INPUT:
            known = "; ".join(item.text() for item in self._inputs.values())
        else:
            known = ", ".join(map(quoted, self._names))
        return UsageError(
            f"The model has no {kind.noun} {quoted(name)}.",
            found=f"its {kind.noun}s are {known or 'none'}",
            fix=f"use {quoted(nearest)}" if nearest else "use one of these names",
        )

    def _misfit(self, kind: SizeKind, name: str, rows: Rows, count: int = 0) -> UsageError | None:
        """Why the rows cannot be used; None where they can."""
        if count and len(rows) not in (1, count):
            what = f"{kind.noun.capitalize()} {quoted(name)} has {len(rows)} {kind.size}s where"
            fix = "give as many of each, or one, which goes with all"
            return UsageError(f"{what} others have {count}.", found=rows_text(rows), fix=fix)
        if kind is DIMENSION:
            reason = _reason((None,), rows, self._use)
            what, found = f"The sizes of dimension {quoted(name)} cannot be used.", ""
        else:
            reason = _reason(self._declared[name], rows, self._use)
            what = f"A shape does not fit input {quoted(name)}."
            found = f"; the model has {self._inputs[name].text()}"
        if not reason:
            return None
        return UsageError(
            what, found=f"{rows_text(rows)}: {reason}{found}", fix="give sizes that fit"
        )

    def _check_conflicts(self, given: Given) -> None:
        """Raise where a name has two sizes."""
        seen = {
            name: (rows, self._use.option_for(kind))
            for (kind, name), rows in given.items()
            if kind is DIMENSION
        }
        for (kind, name), rows in given.items():
            for axis, size in enumerate(self._shapes[name] if kind is INPUT else ()):
                if not isinstance(size, str) or not size or len(rows[0]) <= axis:
                    continue
                column = tuple(row[axis : axis + 1] for row in rows)
                other, place = seen.setdefault(size, (column, f"input {quoted(name)}"))
                if column != other and len({*column, *other}) > 1:
                    sizes = "ranges" if self._use.ranges else "sizes"
                    raise UsageError(
                        f"Dimension {quoted(size)} has two {sizes}.",
                        found=f"{rows_text(other)} in {place}, {rows_text(column)} in input "
                        f"{quoted(name)}",
                        fix="the model gives both one name, so they are one size: give one",
                    )


def _row_at(rows: Rows, number: int) -> Shape:
    return rows[number if len(rows) > 1 else 0]


def _reason(declared: tuple[Size, ...] | None, rows: Rows, use: Use) -> str:
    """Why the rows do not fit, or ""."""
    ranks = {len(row) for row in rows} | (set() if declared is None else {len(declared)})
    if len(ranks) > 1:
        return f"the rank is {' and '.join(map(str, sorted(ranks)))}"
    for axis, column in enumerate(zip(*rows, strict=True)):
        size = None if declared is None else declared[axis]
        shown = ", ".join(map(str, column))
        if size is not None and is_fixed(size) and set(column) != {size}:
            return f"Dimension {axis} is {size} in the model"
        if use.ranges and not column[0] <= column[1] <= column[2]:
            return f"Dimension {axis} is not min <= opt <= max, {shown}"
        if use.ranges and column[1] == 0 and size != 0:
            return f"Dimension {axis} is empty in the usual shape, {shown}"
        if max(column) > use.largest:
            return f"Dimension {axis} is out of range, {shown}"
    elements = max(map(math.prod, rows))
    if use.most_elements is not None and elements > use.most_elements:
        return f"too large, {elements:,} elements of at most {use.most_elements:,}"
    return ""

"""Sizes for the inputs of a model: checked against what it declares, and completed from names."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.sizes import (
    DIMENSION,
    INPUT,
    LARGEST,
    Dims,
    Given,
    Shape,
    Shapes,
    Use,
    read,
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
    """Tell a declared size that is a number; exporters write a negative one for a dynamic size."""
    return isinstance(size, int) and size >= 0


def symbol_of(size: Size, axis: int) -> str | int:
    """Return what a dynamic size goes by in ``Known``."""
    return size if isinstance(size, str) and size else axis


def size_of(size: Size, axis: int, known: Mapping[str | int, int]) -> int | None:
    """Return the size as a number; None where the names that are known do not tell it."""
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
    """Return the shape as numbers; None where the names that are known do not tell it."""
    sizes = [size_of(size, axis, known) for axis, size in enumerate(shape)]
    numbers = tuple(size for size in sizes if size is not None)
    return numbers if len(numbers) == len(sizes) else None


def names_in(size: Size) -> set[str]:
    """Return the names that an expression is computed from, and the whole of it, a name, too."""
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


Point = tuple[str, dict[str, Shape]]
"""Its label, e.g. ``ids=1x16``, and the shapes of all inputs, which belong together."""


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


class InputSizes:
    """The sizes that the inputs of a model are to have.

    Args:
        inputs: of the model.
        use: what the sizes are for.
    """

    def __init__(self, inputs: Iterable[Declared], use: Use) -> None:
        self._use = use
        self._inputs = {item.name: item for item in inputs}
        self._shapes: dict[str, tuple[Size, ...]] = {
            name: (None,) if item.shape is None else item.shape
            for name, item in self._inputs.items()
        }
        sizes = (size for shape in self._shapes.values() for size in shape)
        self._names = dict.fromkeys(name for size in sizes for name in names_in(size))

    def points(self, shapes: Shapes | None, dims: Dims | None = None) -> list[Point]:
        """Return the shape of every input at each point; of ranges, smallest, usual and largest.

        Raises:
            UsageError: an input or a dimension that the model does not have; a rank or a fixed size
                that differs; sizes out of bounds or out of order; a dimension of two sizes; a
                dynamic size that is not known.
        """
        given = self._read(shapes, dims)
        count = 3 if self._use.ranges else max(map(len, given.values()), default=1)
        points = []
        for number in range(count):
            at = _rows_at(given, number)
            label = "; ".join(f"{name}={shape_text(row)}" for (_, name), row in at.items())
            points.append((label, self._complete(*self._bind(at))))
        for name in self._inputs if self._use.ranges else ():
            rows = [shapes[name] for _, shapes in points]
            in_order = all(
                low <= usual <= high and (usual or not high)
                for low, usual, high in zip(*rows, strict=True)
            )
            if not in_order:
                raise self._misfit(name, rows, "sizes are not min <= opt <= max, opt above 0")
        return points

    def known(self, shapes: Shapes | None, dims: Dims | None) -> tuple[dict[str, Shape], Known]:
        """Return the shapes of the inputs that are given, and the sizes of names, of one point.

        Raises:
            UsageError: as ``points``, but a dynamic size may be unknown.
        """
        return self._bind(_rows_at(self._read(shapes, dims), 0))

    def _read(self, shapes: Shapes | None, dims: Dims | None) -> Given:
        """Return what is given, for names that the model has."""
        given, most = read(shapes, dims, self._use), self._use.most_points
        counts = {len(rows) for rows in given.values()} - {1}
        if len(counts) > 1 or max(counts, default=1) > most:
            raise UsageError(
                "The numbers of sizes do not go together.",
                found=", ".join(f"{name}: {len(rows)}" for (_, name), rows in given.items()),
                fix=f"give as many of each, or one that goes with all; {most} at most",
            )
        texts = [item.text() for item in self._inputs.values()]
        for kind, name in given:
            if name not in (self._inputs if kind is INPUT else self._names):
                raise UsageError(
                    f"The model has no {kind} {quoted(name)}.",
                    found=f"its inputs are {'; '.join(texts) or 'none'}",
                    fix="use one of these names",
                )
        return given

    def _bind(self, at: Mapping[tuple[str, str], Shape]) -> tuple[dict[str, Shape], Known]:
        """Return the shapes that are given for one point, and the sizes of names."""
        known: Known = {name: row[0] for (kind, name), row in at.items() if kind is DIMENSION}
        shapes = {name: row for (kind, name), row in at.items() if kind is INPUT}
        for name, row in shapes.items():
            # A session says () for a scalar, and for a rank that it does not know.
            declared = self._inputs[name].shape or ()
            if declared and len(declared) != len(row):
                raise self._misfit(name, [row], f"the rank is {len(declared)}")
            for axis, (size, value) in enumerate(zip(declared, row, strict=False)):
                symbol = symbol_of(size, axis)
                if is_fixed(size):
                    if size != value:
                        raise self._misfit(name, [row], f"dimension {axis} is {size}")
                elif isinstance(symbol, str) and known.setdefault(symbol, value) != value:
                    raise UsageError(
                        f"Dimension {quoted(symbol)} has two sizes.",
                        found=f"{known[symbol]}, and {value} in input {quoted(name)}",
                        fix="the model gives both one name, so they are one size: give one",
                    )
                elif not self._use.ranges:  # a range is not guessed for what has no name
                    known.setdefault(symbol, value)
        return shapes, known

    def _complete(self, shapes: dict[str, Shape], known: Known) -> dict[str, Shape]:
        """Return a shape for every input: those given, and those that follow."""
        computed = {name: sized(shape, known) for name, shape in self._shapes.items()}
        missing = [n for n in self._inputs if n not in shapes and computed[n] is None]
        if missing:
            texts = [self._inputs[name].text() for name in missing[:5]]
            ranges = "smallest, usual and largest" if self._use.ranges else "their"
            raise UsageError(
                "Inputs with dynamic sizes need sizes.",
                found="; ".join(texts) + (" ..." if missing[5:] else ""),
                fix=f"give {ranges} sizes with --dims, or shapes of the inputs with --shapes",
            )
        complete = {name: shapes.get(name) or computed[name] or () for name in self._inputs}
        for name, shape in complete.items():
            if max(shape, default=0) > LARGEST or math.prod(shape) > self._use.most_elements:
                raise self._misfit(name, [shape], "it is too large")
        return complete

    def _misfit(self, name: str, rows: Sequence[Shape], reason: str) -> UsageError:
        shown = ",".join(map(shape_text, dict.fromkeys(rows)))
        return UsageError(
            f"A shape does not fit input {quoted(name)}.",
            found=f"{shown}: {reason}; the model has {self._inputs[name].text()}",
            fix="give sizes that fit with --shapes or --dims, or omit them where all are fixed",
        )


def _rows_at(given: Given, number: int) -> dict[tuple[str, str], Shape]:
    return {key: rows[number if len(rows) > 1 else 0] for key, rows in given.items()}

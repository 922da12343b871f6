"""What the sizes in a declared shape stand for: numbers, names, and sums and products of names."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

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

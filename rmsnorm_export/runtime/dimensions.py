"""Sizes of symbolic dimensions: one size per name, sums and products of names computed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from rmsnorm_export.errors import UsageError

Size = int | str | None

# A longer expression is no size that anyone wrote or any exporter derived.
_MAX_EXPRESSION = 200


class Dimensions:
    """Sizes for the symbols of a model.

    Symbols of one name share a size; a dimension without a name shares one with those on its axis.

    Args:
        sizes: for new symbols in order of appearance; the last one for all further symbols, and for
            expressions that cannot be computed.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes: dict[str, int] = {}
        self._next = chain(sizes, repeat(sizes[-1]))
        self._default = sizes[-1]

    def bind(self, name: str, shape: Sequence[Size], given: Sequence[int]) -> None:
        """The user gave the sizes of input ``name``: its symbols have them everywhere.

        Raises:
            UsageError: another rank than declared, or a negative size.
        """
        if (shape and len(given) != len(shape)) or any(size < 0 for size in given):
            raise UsageError(
                "a given shape does not fit the input",
                found=f"{list(given)} for {name!r}, declared {list(shape)}",
                fix="give one size, 0 or more, per dimension",
            )
        for axis, (size, value) in enumerate(zip(shape, given, strict=False)):
            symbol = _symbol(size, axis)
            if symbol is not None and symbol.isidentifier():
                self._sizes.setdefault(symbol, value)

    def name(self, shapes: Iterable[Sequence[Size]]) -> None:
        """Give every plain symbol of ``shapes`` a size; expressions are computed from these."""
        for shape in shapes:
            for axis, size in enumerate(shape):
                symbol = _symbol(size, axis)
                if symbol is not None and symbol.isidentifier() and symbol not in self._sizes:
                    self._sizes[symbol] = next(self._next)

    def sizes(self, shape: Sequence[Size]) -> tuple[int, ...]:
        """``shape`` as numbers."""
        return tuple(self._size(size, axis) for axis, size in enumerate(shape))

    def _size(self, size: Size, axis: int) -> int:
        symbol = _symbol(size, axis)
        if symbol is None:
            return int(size or 0)
        if symbol in self._sizes:
            return self._sizes[symbol]
        if len(symbol) > _MAX_EXPRESSION:
            return self._default
        try:
            value = self._value(ast.parse(symbol, mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return self._default
        return value if value >= 0 else self._default

    def _value(self, tree: ast.expr) -> int:
        if isinstance(tree, ast.Constant) and type(tree.value) is int:
            return tree.value
        if isinstance(tree, ast.Name) and tree.id in self._sizes:
            return self._sizes[tree.id]
        if isinstance(tree, ast.BinOp):
            left, right = self._value(tree.left), self._value(tree.right)
            if isinstance(tree.op, ast.Add):
                return left + right
            if isinstance(tree.op, ast.Sub):
                return left - right
            if isinstance(tree.op, ast.Mult):
                return left * right
            if isinstance(tree.op, ast.FloorDiv):
                return left // right
        raise ValueError("not a sum or product of known symbols")


def _symbol(size: Size, axis: int) -> str | None:
    """The name of a dimension, one made up where it has none; None for a number."""
    if isinstance(size, str) and size:
        return size
    return f"axis{axis}" if size is None or size == "" or int(size) < 0 else None

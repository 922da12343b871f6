"""What a small integer tensor holds: the sizes that Reshape, Slice or Expand are given.

Exporters compute them in the graph, out of the shapes of other values: ``unflatten(2, (4, -1))`` is
``Concat(Slice(Shape(x), 0, Mod(5, 3)), [4, -1], Slice(Shape(x), ...))``. An element is an int, a
symbol (the size of some dimension, so not negative) or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import onnx_ir as ir

Dim = int | str | None
Elements = tuple[Dim, ...] | None
"""Of a tensor of one dimension or none; None where not even their number is known."""


class Unnamed(str):
    """A symbol for the size of a dimension that the file has no name for."""

    __slots__ = ()

    def __str__(self) -> str:
        return "?"

    __repr__ = __str__


_BOUNDED = re.compile(r"Min\((\d+), (\w+)\)")


def bounded(size: Dim) -> tuple[int, str] | None:
    """(k, n) where PyTorch calls a size ``Min(k, n)``: n, but k at most, as a table has k rows."""
    found = _BOUNDED.fullmatch(size) if isinstance(size, str) else None
    return (int(found[1]), found[2]) if found else None


_MOST = 16
"""No tensor has more dimensions; a longer list of numbers is no shape."""

_SAME = ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape")
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Equal": lambda a, b: int(a == b),
}
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}

OPERATORS = frozenset(
    {*_SAME, *_ARITHMETIC, "Div", "Mod", "Shape", "Concat", "Slice", "Gather", "Where",
     "ConstantOfShape", "OneHot"}
)  # fmt: skip
"""Those that ``elements`` follows."""

SIZES: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Pad": (1,),
    "Split": (1,),
    "Slice": (1, 2, 3, 4),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
}
"""Operators whose output's shape depends on the elements of these inputs."""


def elements(node: ir.Node, dims: Elements, parts: Sequence[Elements]) -> Elements:
    """What the output of ``node`` holds.

    Args:
        node: one of ``OPERATORS``.
        dims: the shape of its first input.
        parts: what its inputs hold.
    """
    op = node.op_type
    result: Elements = None
    if op == "Shape":
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        result = None if dims is None else dims[start:end]
    elif any(part is None for part in parts):
        return None
    elif op in _SAME:
        result = parts[0]
    elif op == "Concat":
        result = tuple(element for part in parts for element in part or ())
    elif op == "Slice":
        result = _part(parts)
    elif op == "Gather":
        result = _picked(parts)
    elif op == "OneHot":
        result = _one_hot(parts)
    elif op == "Where":
        result = _by_element(_choose, parts)
    elif op == "ConstantOfShape":
        count = parts[0][0] if parts[0] else 1
        fill = node.attributes.get("value")
        number = 0 if fill is None else fill.as_tensor().numpy().reshape(-1)[0].item()
        if isinstance(count, int) and 0 <= count <= _MOST and isinstance(number, int):
            result = (number,) * count
    else:
        result = _by_element(lambda a, b: _arithmetic(op, a, b), parts)
    return result if result is None or len(result) <= _MOST else None


def _part(parts: Sequence[Elements]) -> Elements:
    data, *bounds = parts
    numbers = [_one_int(bound) for bound in bounds]
    if data is None or len(numbers) < 2 or None in numbers:
        return None
    step = numbers[3] if len(numbers) > 3 else 1
    return data[slice(numbers[0], numbers[1], step)] if step else None


def _picked(parts: Sequence[Elements]) -> Elements:
    data, indices = parts
    if data is None or indices is None:
        return None
    found: list[Dim] = []
    for index in indices:
        if not isinstance(index, int) or not -len(data) <= index < len(data):
            return None
        found.append(data[index])
    return tuple(found)


def _one_hot(parts: Sequence[Elements]) -> Elements:
    index, depth, (off, on) = _one_int(parts[0]), _one_int(parts[1]), parts[2] or (None, None)
    if index is None or depth is None or not 0 < depth <= _MOST or not -depth <= index < depth:
        return None
    return tuple(on if i == index % depth else off for i in range(depth))


def _by_element(function: Callable[..., Dim], parts: Sequence[Elements]) -> Elements:
    columns = [part or () for part in parts]
    length = max(len(column) for column in columns)
    if any(len(column) not in (1, length) for column in columns):
        return None
    return tuple(
        function(*(column[0 if len(column) == 1 else i] for column in columns))
        for i in range(length)
    )


def _arithmetic(op: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        if op in _ARITHMETIC:
            return _ARITHMETIC[op](a, b)
        # Runtimes differ in the sign of a remainder.
        if a < 0 or b <= 0:
            return None
        return a // b if op == "Div" else a % b
    if op == "Equal":
        if a is not None and a == b:
            return 1
        negative = any(isinstance(size, int) and size < 0 for size in (a, b))
        return 0 if negative and None not in (a, b) else None
    if op in _NEUTRAL and b == _NEUTRAL[op]:
        return a
    return b if op in ("Add", "Mul") and a == _NEUTRAL[op] else None


def _choose(condition: Dim, a: Dim, b: Dim) -> Dim:
    if isinstance(condition, int):
        return a if condition else b
    return a if a == b else None


def _one_int(part: Elements) -> int | None:
    number = part[0] if part is not None and len(part) == 1 else None
    return number if isinstance(number, int) else None

"""The elements of small integer tensors: the sizes that Reshape, Slice or Expand are given.

Exporters compute them in the graph, out of the shapes of other values: ``unflatten(2, (4, -1))`` is
``Concat(Slice(Shape(x), 0, Mod(5, 3)), [4, -1], Slice(Shape(x), ...))``. An element is an int, a
symbol (the size of some dimension, so not negative) or None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Dim = int | str | None
Elements = tuple[Dim, ...] | None
"""In their order, whatever the shape; None where not even their number is known."""
Held = npt.NDArray[np.object_] | None
"""The same in its shape: TorchScript computes padding as a table that it turns over."""


class Unnamed(str):
    """A symbol for the size of a dimension that the file has no name for, or one in a body.

    Made of two parts that a zero divides: what no other symbol has, and the name in the body.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return self.rpartition("\0")[2] or "?"

    __repr__ = __str__


MAX_INT64 = 2**63 - 1


def static(sizes: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Return sizes, or elements, where all are known numbers."""
    known = None if sizes is None else tuple(sizes)
    return known if known is not None and all(isinstance(n, int) for n in known) else None


_TIMES = "\1"
"""Between the symbols of a product; no name of a file has it."""


def factors(size: str) -> list[str]:
    """The symbols of which a symbol is the product: itself, or several."""
    return size.split(_TIMES)


def common(shapes: Sequence[Elements]) -> Elements:
    """The dimensions on which several shapes agree."""
    ranked = [s for s in shapes if s is not None]
    if len(ranked) != len(shapes) or len({len(s) for s in ranked}) != 1:
        return None
    columns = list(zip(*ranked, strict=True))
    return tuple(column[0] if len(set(column)) == 1 else None for column in columns)


def outside(dims: Elements) -> Elements:
    """Dimensions without the symbols that are those of one value, or of one run of a body."""
    return None if dims is None else tuple(None if isinstance(d, Unnamed) else d for d in dims)


_BOUNDED = re.compile(r"Min\((\d+), (\w+)\)")


def bounded(size: Dim) -> tuple[int, str] | None:
    """(k, n) where PyTorch calls a size ``Min(k, n)``: n, but k at most, as a table has k rows."""
    bound = _BOUNDED.fullmatch(size) if isinstance(size, str) else None
    return (int(bound[1]), bound[2]) if bound else None


_MOST = 16
"""No tensor has more dimensions, and padding two numbers for each of eight; more is no shape."""

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
}
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}

OPERATORS = frozenset((
    *_ARITHMETIC, "Div", "Mod", "Equal", "Shape", "Concat", "Slice", "Gather", "Where", "Identity",
    "ConstantOfShape", "OneHot", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Max",
    "ReduceProd",
))  # fmt: skip
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


def elements(
    node: ir.Node, dims: Elements, parts: Sequence[Held], dtype: ir.DataType | None
) -> Held:
    """Return what the output of ``node`` holds.

    Args:
        node: one of ``OPERATORS``.
        dims: the shape of its first input.
        parts: what its inputs hold.
        dtype: element type of the output.
    """
    if node.op_type == "Shape":
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        return None if dims is None else _objects(dims[start:end])
    if node.op_type == "Gather" and len(parts) == 2 and parts[0] is None and parts[1] is not None:
        few = dims is not None and len(dims) == 1 and parts[1].size <= _MOST
        return np.full(parts[1].shape, None) if few else None  # as many as are taken
    present = [part for part in parts if part is not None]
    if len(present) < len(parts) or dtype is None or node.op_type not in OPERATORS:
        return None
    if node.op_type in (*_ARITHMETIC, "Div", "Mod", "ReduceProd") and not dtype.is_integer():
        return None  # a quotient of floats is another
    try:
        result = _computed(node, present)
    except (ValueError, IndexError, TypeError):  # they do not fit each other: no model that runs
        return None
    # NumPy gives the element itself where no dimension is left.
    array = None if result is None else np.asarray(result, object)
    if array is None or array.size > _MOST:
        return None
    stored = [_in_type(element, dtype) for element in array.reshape(-1).tolist()]
    return _objects(stored).reshape(array.shape)


def _in_type(element: Dim, dtype: ir.DataType) -> Dim:
    """The element where ``dtype`` certainly holds it, as it is; no size is 2**31, but a product of
    sizes may be."""
    if isinstance(element, str) or element is None:
        wide = dtype == ir.DataType.INT64
        one = dtype == ir.DataType.INT32 and _TIMES not in (element or "")
        return element if wide or one else None
    if dtype == ir.DataType.BOOL:
        return element if element in (0, 1) else None
    fits = dtype.is_integer() and dtype.min <= element <= dtype.max
    return element if fits else None


def held(array: npt.NDArray[np.generic] | None) -> Held:
    """A constant; None where it is none of whole numbers."""
    return array.astype(object) if array is not None and array.dtype.kind in "iub" else None


def in_order(values: Held) -> Elements:
    """The elements in their order."""
    return None if values is None else tuple(values.reshape(-1).tolist())


def _objects(elements: Sequence[Dim]) -> npt.NDArray[np.object_]:
    result = np.empty(len(elements), object)
    result[:] = elements
    return result


def _computed(node: ir.Node, parts: list[npt.NDArray[np.object_]]) -> Held:
    op, data = node.op_type, parts[0]
    if op == "OneHot":
        last = node.attributes.get_int("axis", -1) == -1
        return _one_hot(data, _integers(parts[1]), parts[2]) if last else None
    if op == "Where":
        return _by_element(_choose, parts)
    if op == "ConstantOfShape":
        return _filled(node, _integers(data))
    if op in (*_ARITHMETIC, "Div", "Mod", "Equal"):
        return _by_element(lambda a, b: _arithmetic(op, a, b), parts)
    if op == "Max":
        return _by_element(_largest, parts)
    if op == "ReduceProd":
        return multiplied(node, data, parts[1:])
    return rearranged(node, parts)


def rearranged(node: ir.Node, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Return the elements of the first of ``parts``, of all in a Concat, in other places.

    Raises:
        ValueError, IndexError, TypeError: they do not fit each other.
    """
    op, data, rest = node.op_type, parts[0], [_integers(part) for part in parts[1:]]
    axis = node.attributes.get_int("axis", 0)
    if op in ("Identity", "Cast"):
        return data
    if op == "Transpose":
        return np.transpose(data, node.attributes.get_ints("perm", None))
    if op == "Concat":
        return np.concatenate(parts, axis)
    if op == "Gather":
        few = rest[0] is not None and len(rest[0]) <= _MOST
        taken = np.take(data, parts[1].astype(int), axis) if few else None
        return None if taken is None else np.asarray(taken, data.dtype)  # one element, a name too
    if op == "Reshape":
        return _reshaped(node, data, rest[0] if rest else None)
    if op == "Slice":
        return _part(data, rest)
    axes = rest[0] if rest else node.attributes.get_ints("axes", None)
    if op == "Squeeze":
        return data.squeeze(None if axes is None else tuple(axes))
    return None if axes is None else np.expand_dims(data, tuple(axes))


def _reshaped(
    node: ir.Node, data: npt.NDArray[Any], target: Sequence[int] | None
) -> npt.NDArray[Any] | None:
    if target is None or (0 in target and node.attributes.get_int("allowzero", 0) == 1):
        return None
    return data.reshape([data.shape[i] if size == 0 else size for i, size in enumerate(target)])


def _part(data: npt.NDArray[Any], given: Sequence[Sequence[int] | None]) -> npt.NDArray[Any] | None:
    present = [bound for bound in given if bound is not None]
    if len(present) < 2 or len(present) < len(given):
        return None
    starts, ends, *more = present
    axes = more[0] if more else range(len(starts))
    steps = more[1] if len(more) > 1 else [1] * len(starts)
    if len({axis % data.ndim for axis in axes}) < len(axes):
        return None
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        data = data.take(np.array(slice_range(start, end, step, data.shape[axis]), int), axis)
    return data


def slice_range(start: int, end: int, step: int, size: int) -> range:
    """The elements of an axis that a Slice takes, clamped as ONNX does it.

    Unlike Python's, a negative step from in front of the first element takes that.

    Raises:
        ValueError: backwards to the largest number, which is no element for ONNX and the first for
            ONNX Runtime.
    """
    if step < 0 and end >= 2**31 - 1:
        raise ValueError
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _one_hot(
    data: npt.NDArray[np.object_], depths: Sequence[int] | None, values: npt.NDArray[np.object_]
) -> Held:
    indices = _integers(data)
    if indices is None or depths is None:
        return None
    (index,), (depth,), (off, on) = indices, depths, values
    if not 0 < depth <= _MOST or not -depth <= index < depth:
        return None
    row = _objects([on if i == index % depth else off for i in range(depth)])
    return row.reshape((*data.shape, depth))


def _filled(node: ir.Node, sizes: Sequence[int] | None) -> Held:
    fill = node.attributes.get("value")
    number = 0 if fill is None else fill.as_tensor().numpy().reshape(-1)[0].item()
    if sizes is None or not isinstance(number, int) or math.prod(sizes) > _MOST:
        return None
    return np.full(sizes, number, object)


def _largest(*sizes: Dim) -> Dim:
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == len(sizes):
        return max(numbers)
    return sizes[0] if len(set(sizes)) == 1 else None


def multiplied(
    node: ir.Node, data: npt.NDArray[np.object_], given: Sequence[npt.NDArray[Any]]
) -> Held:
    """The product of all sizes of a row: a number, or one of symbols alone."""
    axes = given[0].reshape(-1).tolist() if given else node.attributes.get_ints("axes", [])
    if data.ndim != 1 or not set(axes) <= {0, -1}:
        return None
    if not axes and node.attributes.get_int("noop_with_empty_axes", False):
        return data
    sizes = data.tolist()
    number = math.prod(size for size in sizes if isinstance(size, int))
    symbols = sorted(size for size in sizes if isinstance(size, str))
    product: Dim = number
    if None in sizes or (symbols and number != 1):
        product = None
    elif symbols:
        product = symbols[0] if len(symbols) == 1 else Unnamed(_TIMES.join(symbols))
    return np.full((1,) if node.attributes.get_int("keepdims", 1) else (), product, object)


def _by_element(function: Callable[..., Dim], parts: list[npt.NDArray[np.object_]]) -> Held:
    if math.prod(np.broadcast_shapes(*(part.shape for part in parts))) > _MOST:
        return None
    result: npt.NDArray[np.object_] = np.frompyfunc(function, len(parts), 1)(*parts)
    return result


def _integers(part: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """The elements where all are known numbers."""
    return static(part.reshape(-1).tolist())


def _arithmetic(op: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        if op == "Equal":
            return int(a == b)
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

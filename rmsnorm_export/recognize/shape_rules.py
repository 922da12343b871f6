"""Element type and shape of a node's output from those of its inputs, for common operators."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.shape_values import (
    MAX_INT64,
    Dim,
    Elements,
    Unnamed,
    factors,
    slice_range,
    static,
)

Dims = Elements
Info = tuple[ir.DataType | None, Dims]

UNKNOWN: Info = (None, None)

ENDLESS = 10**9
"""From here on the end of a Slice is that of any axis: the least that exporters write for it."""


@dataclasses.dataclass(slots=True)
class Call:
    """A node with what is known of its inputs; ``index`` is the output asked for.

    ``elements`` says what those inputs hold that are sizes (see ``shape_values.SIZES``).
    """

    node: ir.Node
    inputs: list[Info]
    index: int
    constants: Constants
    elements: dict[int, Elements] = dataclasses.field(default_factory=dict)

    def ints(self, index: int) -> tuple[int, ...] | None:
        """The elements of an input where all are known."""
        return static(self.elements.get(index))


Rule = Callable[[Call], Info]


def merge_dims(first: Dims, second: Dims) -> Dims:
    """The more definite of two descriptions of one shape."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(b if definite(b) > definite(a) else a for a, b in zip(first, second, strict=True))


def definite(size: Dim) -> int:
    """Rank a size by what it says: nothing, equal to itself, a name of the file, a number."""
    if size is None or isinstance(size, int):
        return 0 if size is None else 3
    return 1 if isinstance(size, Unnamed) else 2


def applied(rule: Rule, call: Call) -> Info:
    """Apply ``rule``; nothing is known of a node that no runtime takes, nor beyond int64."""
    try:
        dtype, dims = rule(call)
    except (ValueError, IndexError, TypeError, ArithmeticError):
        return UNKNOWN
    return (dtype, in_int64(dims))


def in_int64(dims: Dims) -> Dims:
    """Return the dimensions without those that no tensor has."""
    if dims is None:
        return None
    return tuple(None if isinstance(d, int) and not 0 <= d <= MAX_INT64 else d for d in dims)


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """Multidirectional broadcast; None where the outcome is unknown."""
    rank = 0
    for dims in shapes:
        if dims is None:
            return None
        rank = max(rank, len(dims))
    result: list[Dim] = []
    for position in range(-rank, 0):
        column = [d[position] for d in shapes if d is not None and len(d) >= -position]
        large = [d for d in column if isinstance(d, int) and d != 1]
        rest = [d for d in column if not isinstance(d, int)]
        if large:
            result.append(large[0])
        elif not rest:
            result.append(1)
        else:
            result.append(rest[0] if all(d == rest[0] for d in rest) else None)
    return tuple(result)


def _elementwise(call: Call) -> Info:
    dtypes = [i[0] for i in (call.inputs[:1] if call.node.op_type == "Pow" else call.inputs)]
    dtype = next((dtype for dtype in dtypes if dtype is not None), None)
    return (dtype, broadcast([i[1] for i in call.inputs]))


def _reshape(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    target = call.elements.get(1)
    if target is None:
        return (dtype, None)
    copies = call.node.attributes.get_int("allowzero", 0) != 1
    result: list[Dim] = []
    for position, size in enumerate(target):
        if size == 0 and copies:
            result.append(dims[position] if dims is not None and position < len(dims) else None)
        else:
            result.append(None if isinstance(size, int) and size < 0 else size)
    if target.count(-1) == 1 and dims is not None:
        result[target.index(-1)] = _remaining(dims, result, target.index(-1))
    return (dtype, tuple(result))


def _expand(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    target = call.elements.get(1)
    return (dtype, None if target is None else broadcast([dims, target]))


def _filled(call: Call) -> Info:
    fill = call.node.attributes.get("value")
    return (ir.DataType.FLOAT if fill is None else fill.as_tensor().dtype, call.elements.get(0))


def _range(call: Call) -> Info:
    """From 0 in steps of 1: as many as the limit says, which is a size and not negative."""
    start, limit, step = (call.elements.get(i) for i in range(3))
    plain = start == (0,) and step == (1,) and limit is not None and len(limit) == 1
    if not plain or not limit or (isinstance(limit[0], int) and limit[0] < 0):
        limit = (None,)
    return (call.inputs[1][0], limit)


def _remaining(dims: tuple[Dim, ...], result: list[Dim], hole: int) -> Dim:
    """The dimension that -1 stands for, when symbols cancel."""
    symbols = [d for d in dims if not isinstance(d, int)]
    total, others = math.prod(d for d in dims if isinstance(d, int)), 1
    for position, d in enumerate(result):
        if position == hole:
            continue
        if isinstance(d, int):
            others *= d
            continue
        for factor in (None,) if d is None else factors(d):
            if factor not in symbols:
                return None
            symbols.remove(factor)
    if others == 0 or total % others or max(total, others) > MAX_INT64:
        return None
    if not symbols:
        return total // others
    return symbols[0] if len(symbols) == 1 and total == others else None


def _slice(call: Call) -> Info:
    """Sizes where starts, ends and steps are constant, else only the untouched dimensions."""
    dtype, dims = call.inputs[0]
    starts, ends, axes = call.ints(1), call.ints(2), call.ints(3)
    if dims is None or axes is None or not all(-len(dims) <= axis < len(dims) for axis in axes):
        return (dtype, None)
    stepped = len(call.node.inputs) > 4 and call.node.inputs[4] is not None
    steps = call.ints(4) if stepped else (1,) * len(axes)
    result = list(dims)
    for position, axis in enumerate(axes):
        size = dims[axis]
        result[axis] = None
        if not (starts and ends and steps):
            continue
        cut = starts[position], ends[position], steps[position]
        if isinstance(size, int):
            result[axis] = len(slice_range(*cut, size))
        elif cut[0] == 0 and cut[1] >= ENDLESS and cut[2] == 1:
            result[axis] = size
    return (dtype, tuple(result))


def row_size(dims: Dims, axis: int | None, last: int = -1) -> int | None:
    """Return the elements of a row from ``axis`` to ``last``; None where that is not static."""
    if dims is None or axis is None or len(dims) < -axis:
        return None
    sizes = static(dims[axis : len(dims) + last + 1])
    return None if sizes is None or math.prod(sizes) > MAX_INT64 else math.prod(sizes)


def axes_of(node: ir.Node, constants: Constants) -> tuple[int, ...] | None:
    """Axes of a reduction, Squeeze or Unsqueeze: from the attribute or the second input.

    () when none are given, None when they are not constant.
    """
    if "axes" in node.attributes:
        attribute = node.attributes["axes"]
        return None if attribute.is_ref() else tuple(attribute.as_ints())
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return constants.ints(node.inputs[1])
    return ()


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum"), _elementwise),
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Slice": _slice,
}

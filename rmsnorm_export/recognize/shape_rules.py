"""Element type and shape of a node's output from those of its inputs, for common operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.shape_values import (
    MAX_INT64,
    Dim,
    Elements,
    Unnamed,
    slice_range,
)

Dims = Elements
Info = tuple[ir.DataType | None, Dims]

UNKNOWN: Info = (None, None)


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
        found = self.elements.get(index)
        if found is None:
            return None
        numbers = tuple(e for e in found if isinstance(e, int))
        return numbers if len(numbers) == len(found) else None


Rule = Callable[[Call], Info]


def merge_dims(first: Dims, second: Dims) -> Dims:
    """The more definite of two descriptions of one shape."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(b if definite(b) > definite(a) else a for a, b in zip(first, second, strict=True))


def definite(size: Dim) -> int:
    """How much a size says: nothing, that it is equal to itself, a name of the file, a number."""
    if size is None or isinstance(size, int):
        return 0 if size is None else 3
    return 1 if isinstance(size, Unnamed) else 2


def applied(rule: Rule, call: Call) -> Info:
    """What ``rule`` says; nothing of a node that no runtime takes, nor of what leaves int64."""
    try:
        dtype, dims = rule(call)
    except (ValueError, IndexError, TypeError, ArithmeticError):
        return UNKNOWN
    if dims is None:
        return (dtype, None)
    return (
        dtype,
        tuple(None if isinstance(d, int) and not 0 <= d <= MAX_INT64 else d for d in dims),
    )


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """Multidirectional broadcast; None where the outcome cannot be told."""
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


def _like_first(call: Call) -> Info:
    return call.inputs[0] if call.inputs and call.index == 0 else UNKNOWN


def _norm_and_sum(call: Call) -> Info:
    """The norm (0) and the residual sum (1 of ours, 3 of com.microsoft) are like the input."""
    return call.inputs[0] if call.inputs and call.index in (0, 1, 3) else UNKNOWN


def _elementwise(call: Call) -> Info:
    dtype = next((i[0] for i in call.inputs if i[0] is not None), None)
    return (
        call.inputs[0][0] if call.node.op_type == "Pow" else dtype,
        broadcast([i[1] for i in call.inputs]),
    )


def _compared(call: Call) -> Info:
    return (ir.DataType.BOOL, broadcast([i[1] for i in call.inputs]))


def _shape(call: Call) -> Info:
    dims, attributes = call.inputs[0][1], call.node.attributes
    asked = slice(attributes.get_int("start", 0), attributes.get_int("end", None))
    return (ir.DataType.INT64, None if dims is None else (len(dims[asked]),))


def _where(call: Call) -> Info:
    if len(call.inputs) != 3:
        return UNKNOWN
    return (call.inputs[1][0] or call.inputs[2][0], broadcast([i[1] for i in call.inputs]))


def _cast(call: Call) -> Info:
    attribute = call.node.attributes.get("to")
    if attribute is None or attribute.is_ref() or not call.inputs:
        return (None, call.inputs[0][1] if call.inputs else None)
    return (ir.DataType(attribute.as_int()), call.inputs[0][1])


def _cast_like(call: Call) -> Info:
    return (call.inputs[1][0], call.inputs[0][1]) if len(call.inputs) == 2 else UNKNOWN


def _matmul(call: Call) -> Info:
    if len(call.inputs) != 2:
        return UNKNOWN
    (dtype, left), (other, right) = call.inputs
    dtype = dtype or other
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return (dtype, None)
    lead = broadcast([left[:-2], right[:-2]])
    return (dtype, None if lead is None else (*lead, left[-2], right[-1]))


def _einsum(call: Call) -> Info:
    dtype = next((i[0] for i in call.inputs if i[0] is not None), None)
    equation = call.node.attributes.get_string("equation", "").replace(" ", "")
    terms, arrow, output = equation.partition("->")
    named = list(zip(terms.split(","), (i[1] for i in call.inputs), strict=False))
    known = all(dims is not None and len(term) == len(dims) for term, dims in named)
    if not arrow or not known or len(named) != terms.count(",") + 1:
        return (dtype, None)  # an ellipsis has the rank wrong, too
    sizes: list[Dim] = []
    for label in output:
        column = [(dims[term.index(label)],) for term, dims in named if dims and label in term]
        joined = broadcast(column)
        sizes.append(None if joined is None else joined[0])
    return (dtype, tuple(sizes))


def _gemm(call: Call) -> Info:
    (dtype, left), (_, right) = call.inputs[0], call.inputs[1]
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return (dtype, None)
    rows = left[1] if call.node.attributes.get_int("transA", 0) else left[0]
    columns = right[0] if call.node.attributes.get_int("transB", 0) else right[1]
    return (dtype, (rows, columns))


def _gather(call: Call) -> Info:
    (dtype, data), (_, indices) = call.inputs[0], call.inputs[1]
    axis = call.node.attributes.get_int("axis", 0)
    if data is None or indices is None or not -len(data) <= axis < len(data):
        return (dtype, None)
    axis %= len(data)
    return (dtype, (*data[:axis], *indices, *data[axis + 1 :]))


def _transpose(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    order: Sequence[int] = call.node.attributes.get_ints("perm", ())
    if not order and dims is not None:
        order = tuple(reversed(range(len(dims))))
    if not order or sorted(order) != list(range(len(order))):
        return (dtype, dims if dims == () else None)
    if dims is None or len(dims) != len(order):
        return (dtype, (None,) * len(order) if dims is None else None)
    return (dtype, tuple(dims[i] for i in order))


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
    total, others = 1, 1
    for d in dims:
        total *= d if isinstance(d, int) else 1
    for position, d in enumerate(result):
        if position == hole:
            continue
        if isinstance(d, int):
            others *= d
        elif d is not None and d in symbols:
            symbols.remove(d)
        else:
            return None
    if others == 0 or total % others or max(total, others) > MAX_INT64:
        return None
    if not symbols:
        return total // others
    return symbols[0] if len(symbols) == 1 and total == others else None


def _tile(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    repeats = call.elements.get(1)
    if dims is None or repeats is None or len(repeats) != len(dims):
        return (dtype, None if dims is None else (None,) * len(dims))
    return (dtype, tuple(_product(d, r) for d, r in zip(dims, repeats, strict=True)))


def _product(size: Dim, times: Dim) -> Dim:
    if times == 1:
        return size
    return size * times if isinstance(size, int) and isinstance(times, int) else None


def _pad(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    if dims is None:
        return (dtype, None)
    rank, pads = len(dims), call.ints(1) or call.node.attributes.get_ints("pads", ()) or ()
    chosen = len(call.node.inputs) > 3 and call.node.inputs[3] is not None
    if chosen or len(pads) != 2 * rank:
        return (dtype, (None,) * rank)
    more = [pads[i] + pads[i + rank] for i in range(rank)]
    return (
        dtype,
        tuple(d + m if isinstance(d, int) else (None if m else d)
              for d, m in zip(dims, more, strict=True)),
    )  # fmt: skip


def _convolution(call: Call) -> Info:
    (dtype, data), (_, weight) = call.inputs[0], call.inputs[1]
    if data is None or weight is None or len(weight) < 3 or len(data) != len(weight):
        return (dtype, None if weight is None else (None, weight[0], *(None,) * (len(weight) - 2)))
    attributes, rank = call.node.attributes, len(weight) - 2
    strides = attributes.get_ints("strides", (1,) * rank)
    dilations = attributes.get_ints("dilations", (1,) * rank)
    pads = attributes.get_ints("pads", (0,) * (2 * rank))
    sizes: list[Dim] = []
    for i in range(rank):
        size, kernel = data[i + 2], weight[i + 2]
        if "auto_pad" in attributes or not isinstance(kernel, int):
            sizes.append(None)
            continue
        less = dilations[i] * (kernel - 1) - pads[i] - pads[i + rank]
        if isinstance(size, int):
            sizes.append((size - less - 1) // strides[i] + 1)
        else:
            sizes.append(size if less == 0 and strides[i] == 1 else None)
    return (dtype, (data[0], weight[0], *sizes))


def _depth_to_space(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    block = call.node.attributes.get_int("blocksize", 1)
    if dims is None or len(dims) != 4:
        return (dtype, None)
    batch, channels, *sizes = dims
    divided = channels // block**2 if isinstance(channels, int) else None
    return (dtype, (batch, divided, *(_product(size, block) for size in sizes)))


def _same_rank(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    return (dtype, None if dims is None else (None,) * len(dims))


def _unsqueeze(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    axes = axes_of(call.node, call.constants)
    if dims is None or not axes:
        return (dtype, None)
    rank = len(dims) + len(axes)
    places = {axis % rank for axis in axes if -rank <= axis < rank}
    rest = iter(dims)
    if len(places) != len(axes):
        return (dtype, None)
    return (dtype, tuple(1 if i in places else next(rest) for i in range(rank)))


def _reduce(call: Call) -> Info:
    """Reductions, and Squeeze, which is like one that keeps no axis."""
    dtype, dims = call.inputs[0]
    axes = axes_of(call.node, call.constants)
    if dims is None or not axes or not all(-len(dims) <= a < len(dims) for a in axes):
        return (dtype, None)
    gone = {axis % len(dims) for axis in axes}
    keepdims = call.node.attributes.get_int("keepdims", 1)
    if keepdims and call.node.op_type != "Squeeze":
        return (dtype, tuple(1 if i in gone else d for i, d in enumerate(dims)))
    return (dtype, tuple(d for i, d in enumerate(dims) if i not in gone))


def _concat(call: Call) -> Info:
    dtype = next((i[0] for i in call.inputs if i[0] is not None), None)
    shapes = [i[1] for i in call.inputs]
    first = shapes[0] if shapes else None
    axis = call.node.attributes.get_int("axis", 0)
    if first is None or not -len(first) <= axis < len(first):
        return (dtype, None)
    axis %= len(first)
    total = 0
    for dims in shapes:
        if dims is None or len(dims) != len(first) or not isinstance(dims[axis], int):
            return (dtype, (*first[:axis], None, *first[axis + 1 :]))
        total += int(dims[axis] or 0)
    return (dtype, (*first[:axis], total, *first[axis + 1 :]))


def _slice(call: Call) -> Info:
    """Sizes where starts, ends and steps are constant, else only the untouched dimensions."""
    dtype, dims = call.inputs[0]
    starts, ends, axes = call.ints(1), call.ints(2), call.ints(3)
    if dims is None or axes is None or not all(-len(dims) <= axis < len(dims) for axis in axes):
        return (dtype, None)
    given = len(call.node.inputs) > 4 and call.node.inputs[4] is not None
    steps = call.ints(4) if given else (1,) * len(axes)
    result = list(dims)
    for position, axis in enumerate(axes):
        size = dims[axis]
        result[axis] = None
        if starts and ends and steps and isinstance(size, int):
            cut = slice_range(starts[position], ends[position], steps[position], size)
            result[axis] = len(cut)
    return (dtype, tuple(result))


def _split(call: Call) -> Info:
    dtype, dims = call.inputs[0]
    axis = call.node.attributes.get_int("axis", 0)
    if dims is None or not -len(dims) <= axis < len(dims):
        return (dtype, None)
    sizes: Sequence[int] | None = None
    if "split" in call.node.attributes:
        sizes = call.node.attributes.get_ints("split", ())
    elif len(call.node.inputs) > 1 and call.node.inputs[1] is not None:
        sizes = call.ints(1)
    axis %= len(dims)
    size: Dim = None
    if sizes is not None and call.index < len(sizes):
        size = sizes[call.index]
    elif isinstance(dims[axis], int) and len(call.node.inputs) == 1:
        count = len(call.node.outputs)
        chunk = -(-int(dims[axis] or 0) // count)
        size = min(chunk, int(dims[axis] or 0) - chunk * call.index)
    return (dtype, (*dims[:axis], size, *dims[axis + 1 :]))


def _constant_info(call: Call) -> Info:
    array = call.constants.array(call.node.outputs[0])
    if array is not None:
        return (ir.DataType.from_numpy(array.dtype), tuple(array.shape))
    floats = call.node.attributes.get("value_floats")
    if floats is not None and not floats.is_ref():
        return (ir.DataType.FLOAT, (len(floats.as_floats()),))
    attribute = call.node.attributes.get("value")
    if attribute is None or attribute.is_ref():
        return UNKNOWN
    tensor = attribute.as_tensor()
    return (tensor.dtype, tuple(d if isinstance(d, int) else None for d in tensor.shape))


def row_size(dims: Dims, axis: int | None, last: int = -1) -> int | None:
    """Elements of a row from ``axis`` to ``last``; None where that is not static."""
    if dims is None or axis is None or len(dims) < -axis:
        return None
    size = 1
    for dim in dims[axis : len(dims) + last + 1]:
        if not isinstance(dim, int):
            return None
        size *= dim
    return size if size <= MAX_INT64 else None


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


_LIKE_FIRST = (
    "Identity", "Abs", "Neg", "Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "Tanh", "Relu", "Gelu",
    "Erf", "Softmax", "LogSoftmax", "Clip", "Dropout", "LayerNormalization", "Softplus", "Swish",
    "HardSwish", "Elu", "LeakyRelu", "Floor", "Ceil", "Round", "Sin", "Cos", "LpNormalization",
    "RMSNorm", "GatedRMSNorm", "RotaryRMSNorm", "Mish", "Selu", "HardSigmoid", "CumSum", "Trilu",
    "ScatterND", "GroupNormalization", "MeanVarianceNormalization", RMS_NORMALIZATION, SIMPLIFIED,
)  # fmt: skip
"""Operators whose first output has the type and shape of the first input."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_LIKE_FIRST, _like_first),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum"), _elementwise),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "ReduceMax"), _reduce
    ),
    **dict.fromkeys(
        ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or"), _compared
    ),
    "Constant": _constant_info,
    "Shape": _shape,
    "SkipRMSNorm": _norm_and_sum,
    SKIP_SIMPLIFIED: _norm_and_sum,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Gather": _gather,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Conv": _convolution,
    "DepthToSpace": _depth_to_space,
    "Resize": _same_rank,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _reduce,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
}

"""Element types and shapes: what the file says, then local rules, then ONNX shape inference once.

Nothing is written to the graph. A dimension is an int, a symbol (str) or None.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rmsnorm_export.recognize.consts import Constants

logger = logging.getLogger(__name__)

Dim = int | str | None
Dims = tuple[Dim, ...] | None
Info = tuple[ir.DataType | None, Dims]

UNKNOWN: Info = (None, None)


class Types:
    """Element type and shape of any value of one model."""

    def __init__(self, model: ir.Model, constants: Constants) -> None:
        self._model = model
        self._constants = constants
        self._known: dict[ir.Value, Info] = {}
        self._inferred: dict[ir.Value, Info] | None = None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type, or None when nothing tells."""
        if value.dtype is not None:
            return value.dtype
        found = self._local(value)[0]
        return found if found is not None else self._library(value)[0]

    def shape(self, value: ir.Value) -> Dims:
        """Dimensions, or None when not even the rank is known."""
        own = _declared(value)[1]
        if own is not None and (not own or None not in own):
            return own
        found = merge_dims(own, self._local(value)[1])
        if found is None:
            found = self._library(value)[1]
        return found

    def static_last(self, value: ir.Value) -> int | None:
        """The last dimension if it is a static one."""
        own = _declared(value)[1]
        if own and isinstance(own[-1], int):
            return own[-1]
        dims = self._local(value)[1]
        if dims and isinstance(dims[-1], int):
            return dims[-1]
        dims = self._library(value)[1]
        return dims[-1] if dims and isinstance(dims[-1], int) else None

    def rank(self, value: ir.Value) -> int | None:
        """Number of dimensions, or None."""
        if value.shape is not None:
            return len(value.shape)
        dims = self.shape(value)
        return None if dims is None else len(dims)

    def seed(self, value: ir.Value, info: Info) -> None:
        """Say what a function's input is, from the places that call it."""
        self._known[value] = info

    def info(self, value: ir.Value) -> Info:
        """Type and dimensions without asking ONNX shape inference."""
        return self._local(value)

    def _local(self, value: ir.Value) -> Info:
        known = self._known
        if value in known:
            return known[value]
        # Depth first with our own stack: chains of a million nodes are no recursion error.
        stack = [value]
        open_values: set[ir.Value] = set()
        while stack:
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            declared = _declared(top)
            node = top.producer()
            rule = None if node is None else _RULES.get(node.op_type)
            complete = declared[0] is not None and declared[1] is not None
            if rule is None or node is None or (complete and None not in (declared[1] or ())):
                known[top] = declared
                stack.pop()
                continue
            missing = [v for v in node.inputs if v is not None and v not in known]
            if missing and top not in open_values:
                open_values.add(top)
                stack.extend(missing)
                continue
            stack.pop()
            inputs = [UNKNOWN if v is None else known.get(v, UNKNOWN) for v in node.inputs]
            dtype, dims = rule(node, inputs, top.index() or 0, self._constants)
            known[top] = (declared[0] or dtype, merge_dims(declared[1], dims))
        return known[value]

    def _library(self, value: ir.Value) -> Info:
        if self._inferred is None:
            self._inferred = self._infer()
        return self._inferred.get(value, UNKNOWN)

    def _infer(self) -> dict[ir.Value, Info]:
        from onnx_ir.passes.common import ShapeInferencePass

        result: dict[ir.Value, Info] = {}
        try:
            copy = self._model.clone()
            inferred = ShapeInferencePass()(copy).model
            pairs = zip(self._model.graph.all_nodes(), inferred.graph.all_nodes(), strict=True)
            for ours, theirs in pairs:
                for value, other in zip(ours.outputs, theirs.outputs, strict=True):
                    result[value] = _declared(other)
        except Exception as error:
            # Inference is an aid: a model that it cannot read only keeps its unknown shapes.
            logger.warning("ONNX shape inference failed, unknown shapes stay unknown: %s", error)
        return result


def _declared(value: ir.Value) -> Info:
    shape = value.shape
    if shape is None:
        return (value.dtype, None)
    return (value.dtype, tuple(d if isinstance(d, int) else d.value for d in shape))


def merge_dims(first: Dims, second: Dims) -> Dims:
    """The more definite of two descriptions of one shape."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(
        b if a is None or (isinstance(b, int) and not isinstance(a, int)) else a
        for a, b in zip(first, second, strict=True)
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


Rule = Callable[[ir.Node, list[Info], int, Constants], Info]


def _same(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    return inputs[0] if inputs and index == 0 else UNKNOWN


def _elementwise(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype = next((i[0] for i in inputs if i[0] is not None), None)
    return (inputs[0][0] if node.op_type == "Pow" else dtype, broadcast([i[1] for i in inputs]))


def _where(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    if len(inputs) != 3:
        return UNKNOWN
    return (inputs[1][0] or inputs[2][0], broadcast([i[1] for i in inputs]))


def _cast(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    attribute = node.attributes.get("to")
    if attribute is None or attribute.is_ref() or not inputs:
        return (None, inputs[0][1] if inputs else None)
    return (ir.DataType(attribute.as_int()), inputs[0][1])


def _cast_like(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    return (inputs[1][0], inputs[0][1]) if len(inputs) == 2 else UNKNOWN


def _matmul(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    if len(inputs) != 2:
        return UNKNOWN
    (dtype, left), (other, right) = inputs
    dtype = dtype or other
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return (dtype, None)
    lead = broadcast([left[:-2], right[:-2]])
    return (dtype, None if lead is None else (*lead, left[-2], right[-1]))


def _gemm(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    (dtype, left), (_, right) = inputs[0], inputs[1]
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return (dtype, None)
    rows = left[1] if node.attributes.get_int("transA", 0) else left[0]
    columns = right[0] if node.attributes.get_int("transB", 0) else right[1]
    return (dtype, (rows, columns))


def _gather(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    (dtype, data), (_, indices) = inputs[0], inputs[1]
    axis = node.attributes.get_int("axis", 0)
    if data is None or indices is None or not -len(data) <= axis < len(data):
        return (dtype, None)
    axis %= len(data)
    return (dtype, (*data[:axis], *indices, *data[axis + 1 :]))


def _transpose(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype, dims = inputs[0]
    if dims is None:
        return (dtype, None)
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(dims)))))
    if sorted(order) != list(range(len(dims))):
        return (dtype, None)
    return (dtype, tuple(dims[i] for i in order))


def _reshape(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype, dims = inputs[0]
    wanted = constants.ints(node.inputs[1]) if len(node.inputs) > 1 else None
    if wanted is None or node.attributes.get_int("allowzero", 0):
        return (dtype, None)
    result: list[Dim] = []
    for position, size in enumerate(wanted):
        if size == 0:
            result.append(dims[position] if dims is not None and position < len(dims) else None)
        else:
            result.append(size if size > 0 else None)
    if wanted.count(-1) == 1 and dims is not None:
        result[wanted.index(-1)] = _remaining(dims, result, wanted.index(-1))
    return (dtype, tuple(result))


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
    if others == 0 or total % others:
        return None
    if not symbols:
        return total // others
    return symbols[0] if len(symbols) == 1 and total == others else None


def _unsqueeze(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype, dims = inputs[0]
    axes = axes_of(node, constants)
    if dims is None or not axes:
        return (dtype, None)
    rank = len(dims) + len(axes)
    places = {axis % rank for axis in axes if -rank <= axis < rank}
    rest = iter(dims)
    if len(places) != len(axes):
        return (dtype, None)
    return (dtype, tuple(1 if i in places else next(rest) for i in range(rank)))


def _squeeze(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype, dims = inputs[0]
    axes = axes_of(node, constants)
    if dims is None or not axes or not all(-len(dims) <= a < len(dims) for a in axes):
        return (dtype, None)
    gone = {axis % len(dims) for axis in axes}
    return (dtype, tuple(d for i, d in enumerate(dims) if i not in gone))


def _reduce(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype, dims = inputs[0]
    axes = axes_of(node, constants)
    if dims is None or not axes or not all(-len(dims) <= a < len(dims) for a in axes):
        return (dtype, None)
    gone = {axis % len(dims) for axis in axes}
    if node.attributes.get_int("keepdims", 1):
        return (dtype, tuple(1 if i in gone else d for i, d in enumerate(dims)))
    return (dtype, tuple(d for i, d in enumerate(dims) if i not in gone))


def _concat(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    dtype = next((i[0] for i in inputs if i[0] is not None), None)
    shapes = [i[1] for i in inputs]
    first = shapes[0] if shapes else None
    axis = node.attributes.get_int("axis", 0)
    if first is None or not -len(first) <= axis < len(first):
        return (dtype, None)
    axis %= len(first)
    total = 0
    for dims in shapes:
        if dims is None or len(dims) != len(first) or not isinstance(dims[axis], int):
            return (dtype, (*first[:axis], None, *first[axis + 1 :]))
        total += int(dims[axis] or 0)
    return (dtype, (*first[:axis], total, *first[axis + 1 :]))


def _slice(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    """Only the rank and the untouched dimensions; sizes after slicing are left open."""
    dtype, dims = inputs[0]
    axes = constants.ints(node.inputs[3]) if len(node.inputs) > 3 else None
    if dims is None or axes is None or not all(-len(dims) <= a < len(dims) for a in axes):
        return (dtype, None)
    cut = {axis % len(dims) for axis in axes}
    return (dtype, tuple(None if i in cut else d for i, d in enumerate(dims)))


def _constant(node: ir.Node, inputs: list[Info], index: int, constants: Constants) -> Info:
    array = constants.array(node.outputs[0])
    if array is not None:
        return (ir.DataType.from_numpy(array.dtype), tuple(array.shape))
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref():
        return UNKNOWN
    tensor = attribute.as_tensor()
    return (tensor.dtype, tuple(int(d) for d in tensor.shape))


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


_UNARY = (
    "Identity Abs Neg Sqrt Reciprocal Exp Log Sigmoid Tanh Relu Gelu Erf Softmax LogSoftmax Clip "
    "Dropout LayerNormalization RMSNormalization SimplifiedLayerNormalization Softplus Swish "
    "HardSwish Elu LeakyRelu Floor Ceil Round Sin Cos LpNormalization RMSNorm GatedRMSNorm "
    "SkipRMSNorm Mish Selu HardSigmoid CumSum Trilu ScatterND GroupNormalization"
).split()
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum"), _elementwise),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "ReduceMax"), _reduce
    ),
    "Constant": _constant,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Gather": _gather,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
}

"""Constants of a handful of elements; nothing larger is ever read."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.native import DEFAULT_DOMAINS

MAX_ELEMENTS = 8
_MOST_REPEATED = 1 << 16
"""Elements of a stored row that is read to see whether they are all one number."""
_MAX_DEPTH = 12
_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Reciprocal": lambda a: (1 / a.astype(np.float64)).astype(a.dtype),
}
_SHAPING = ("Identity", "Cast", "CastLike", "Unsqueeze", "Squeeze", "Reshape")
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}


def standard(node: ir.Node | None) -> str:
    """Operator type of a node of the default domain; "" for any other, whatever its name.

    A model-local function may be called Identity or Dropout and do anything.
    """
    return node.op_type if node is not None and node.domain in DEFAULT_DOMAINS else ""


def depends_on_caller(node: ir.Node) -> bool:
    """An attribute is given by the caller of the function: what the node does is not known here."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


class Constants:
    """Evaluates small constant expressions; results are cached per value.

    Attributes:
        earlier: values -> earlier ones of the same numbers, shape and element type.
        type_of: element type of a value that the file does not say; asked for CastLike alone.
    """

    def __init__(self) -> None:
        self._known: dict[ir.Value, np.ndarray | None] = {}
        self._repeated: dict[ir.Value, np.ndarray | None] = {}
        self._untyped = False
        self.earlier: dict[ir.Value, ir.Value] = {}
        self.type_of: Callable[[ir.Value], ir.DataType | None] | None = None

    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The elements of ``value`` if it is constant and small, else None.

        An initializer that is also a graph input can be overridden at run time: not constant.
        """
        self._untyped = False
        return None if value is None else self._array(value, 0)

    def scalar(self, value: ir.Value | None) -> float | None:
        """The one element of ``value`` as a float, or None."""
        array = self.array(value)
        if array is None or array.size != 1:
            return None
        try:
            number = float(array.reshape(()).astype(np.float64))
        except (TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The elements of ``value`` as integers, or None."""
        array = self.array(value)
        if array is None or array.dtype.kind not in "iub":
            return None
        return tuple(int(element) for element in array.reshape(-1))

    def repeated(self, value: ir.Value | None) -> np.ndarray | None:
        """``value`` if it is a stored constant whose elements are all one number, else None.

        Rows of up to 65,536 elements are read, if they stand in the file itself.
        """
        if value is None:
            return None
        if value not in self._repeated:
            array = self.array(value)
            tensor = _stored(value)
            if array is None and tensor is not None and not isinstance(tensor, ir.ExternalTensor):
                array = _small_array(tensor, _MOST_REPEATED)
            same = array is not None and array.size > 0 and bool((array == array.flat[0]).all())
            self._repeated[value] = array if same else None
        return self._repeated[value]

    def _array(self, value: ir.Value, depth: int) -> np.ndarray | None:
        if value in self._known:
            return self._known[value]
        result = self._evaluate(value, depth)
        # A type that is not known yet may be known later, once the calls of a function are.
        if result is not None or not self._untyped:
            self._known[value] = result
        return result

    def _evaluate(self, value: ir.Value, depth: int) -> np.ndarray | None:
        if value.is_initializer():
            tensor = _stored(value)
            return None if tensor is None else _small_array(tensor)
        node = value.producer()
        if node is None or depth > _MAX_DEPTH or node.domain not in DEFAULT_DOMAINS:
            return None
        if value in self.earlier:
            return self._array(self.earlier[value], depth + 1)
        op = node.op_type
        if op == "Constant":
            return _constant_node(node)
        if depends_on_caller(node):
            return None
        if op in ("Gather", "Size"):
            return self._shape_element(node)
        if op == "Concat":
            return self._joined(node, depth)
        inputs = node.inputs
        if not inputs or inputs[0] is None:
            return None
        if op in _BINARY:
            left = self._array(inputs[0], depth + 1)
            if left is None or len(inputs) < 2 or inputs[1] is None:
                return None
            right = self._array(inputs[1], depth + 1)
            if right is None:
                return None
            return _binary(op, left, right)
        if op not in _SHAPING and op not in _UNARY:
            return None
        source = self._array(inputs[0], depth + 1)
        if source is None:
            return None
        if op == "Identity":
            return source
        if op in _UNARY:
            if source.dtype.kind in "iub":
                return None
            with np.errstate(all="ignore"):
                return np.asarray(_UNARY[op](source)).astype(source.dtype)
        if op in ("Cast", "CastLike"):
            to = node.attributes.get_int("to", 0) if op == "Cast" else self._type_like(node)
            return _converted(source, to)
        return self._reshaped(node, source, depth)

    def _type_like(self, node: ir.Node) -> int:
        """The element type that a CastLike gives; 0 where it is not known."""
        like = node.inputs[1]
        dtype = node.outputs[0].dtype or (None if like is None else like.dtype)
        if dtype is None and like is not None and self.type_of is not None:
            dtype = self.type_of(like)
        self._untyped = self._untyped or dtype is None
        return int(dtype or 0)

    def _joined(self, node: ir.Node, depth: int) -> np.ndarray | None:
        parts = [None if v is None else self._array(v, depth + 1) for v in node.inputs]
        known = [part for part in parts if part is not None and part.ndim == 1]
        if not known or len(known) < len(parts) or sum(part.size for part in known) > MAX_ELEMENTS:
            return None
        return np.concatenate(known)

    def _reshaped(self, node: ir.Node, source: np.ndarray, depth: int) -> np.ndarray | None:
        axes: tuple[int, ...] | None = None
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            operand = self._array(node.inputs[1], depth + 1)
            if operand is None:
                return None
            axes = tuple(int(element) for element in operand.reshape(-1))
        elif "axes" in node.attributes:
            axes = tuple(node.attributes.get_ints("axes", ()))
        try:
            if node.op_type == "Reshape":
                return None if axes is None or 0 in axes else source.reshape(axes)
            if node.op_type == "Squeeze":
                return np.squeeze(source, axis=axes)
            return None if axes is None else np.expand_dims(source, axes)
        except ValueError:
            return None

    def _shape_element(self, node: ir.Node) -> np.ndarray | None:
        """``Gather(Shape(x), i)`` where that dimension is static."""
        if node.op_type != "Gather" or len(node.inputs) != 2:
            return None
        shape_value, index_value = node.inputs
        producer = shape_value.producer() if shape_value is not None else None
        if producer is None or standard(producer) != "Shape":
            return None
        index = self.array(index_value)
        source = producer.inputs[0]
        if index is None or index.size != 1 or source is None or source.shape is None:
            return None
        position = int(index.reshape(()))
        start = producer.attributes.get_int("start", 0)
        stop = producer.attributes.get_int("end", None)
        shape = tuple(source.shape)[start:stop]
        if not -len(shape) <= position < len(shape) or not isinstance(shape[position], int):
            return None
        return np.full(index.shape, shape[position], np.int64)


def _binary(op: str, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    integers = left.dtype.kind in "iu"
    if integers and op in ("Div", "Pow"):
        return None
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)
        if math.prod(shape) > MAX_ELEMENTS:
            return None
        with np.errstate(all="ignore"):
            if not integers:
                return np.asarray(_BINARY[op](left, right)).astype(left.dtype)
            exact = np.asarray(_BINARY[op](left.astype(object), right.astype(object)), object)
        info = np.iinfo(left.dtype)
        kept = all(info.min <= number <= info.max for number in exact.reshape(-1))
        return exact.astype(left.dtype) if kept else None
    except (TypeError, ValueError):
        return None


def _converted(source: np.ndarray, to: int) -> np.ndarray | None:
    try:
        dtype = ir.DataType(to)
        with np.errstate(all="ignore"):
            result = source.astype(dtype.numpy())
            # Of a float that an integer type does not hold every machine makes something else.
            lossy = dtype.is_integer() and source.dtype.kind not in "iub"
            return None if lossy and not (result == np.trunc(source)).all() else result
    except (TypeError, ValueError):
        return None


def _stored(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer that no caller can replace, or of a Constant node."""
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or standard(node) != "Constant" or "value" not in node.attributes:
        return None
    attribute = node.attributes["value"]
    return None if attribute.is_ref() else attribute.as_tensor()


def _small_array(tensor: ir.TensorProtocol, most: int = MAX_ELEMENTS) -> np.ndarray | None:
    if tensor.size > most or tensor.dtype == ir.DataType.STRING:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError, TypeError):
        # The file of an external tensor may be absent: its number is then unknown.
        return None


def _constant_node(node: ir.Node) -> np.ndarray | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return _small_array(attribute.as_tensor())
        if name == "value_float":
            return np.asarray(attribute.as_float(), np.float32)
        if name == "value_int":
            return np.asarray(attribute.as_int(), np.int64)
        if name == "value_floats":
            numbers = attribute.as_floats()
            return np.asarray(numbers, np.float32) if len(numbers) <= MAX_ELEMENTS else None
        if name == "value_ints":
            integers = attribute.as_ints()
            return np.asarray(integers, np.int64) if len(integers) <= MAX_ELEMENTS else None
    return None

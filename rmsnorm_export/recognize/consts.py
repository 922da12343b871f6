"""Constants of a handful of elements; nothing larger is ever read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rmsnorm_export.recognize.shape_values import multiplied, rearranged

MAX_ELEMENTS = 8
_MOST_REPEATED = 1 << 16
"""Elements of a stored row that is read to see whether they are all one number."""
_MAX_DEPTH = 12
_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Reciprocal": lambda a: (1 / a.astype(np.float64)).astype(a.dtype),
}
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}

MOVES = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose output has the elements of their input, in another order or shape."""

REARRANGED = ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Concat", "Gather", "Slice")
"""Operators of which the output has elements of the inputs, sizes among them."""

SCALED = ("QuantizeLinear", "DequantizeLinear")
_FOLLOWED = frozenset((*_UNARY, *_BINARY, *REARRANGED, *SCALED, "Cast", "CastLike", "ReduceProd"))
_REALS, _WHOLES = ("value_float", "value_floats"), ("value_int", "value_ints")
_VALUE_TYPES = dict.fromkeys(_REALS, np.float32) | dict.fromkeys(_WHOLES, np.int64)


def standard(node: ir.Node | None) -> str:
    """Operator type of a node of the default domain; "" for any other, whatever its name.

    A model-local function may be called Identity or Dropout and do anything. A Sum of two tensors
    is an Add.
    """
    if node is None or node.domain:
        return ""
    op_type = node.op_type
    return "Add" if op_type == "Sum" and len(node.inputs) == 2 else op_type


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that makes ``value`` if it is of the default domain and of these types."""
    node = None if value is None else value.producer()
    return node if standard(node) in op_types else None


def depends_on_caller(node: ir.Node) -> bool:
    """An attribute is given by the caller of the function: what the node does is not known here."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


class Constants:
    """Evaluates small constant expressions; results are cached per value.

    Attributes:
        earlier: values -> earlier ones of the same numbers, shape and element type.
        info_of: element type and shape of a value that the file does not say.
    """

    def __init__(self) -> None:
        self._arrays: dict[ir.Value, np.ndarray | None] = {}
        self._repeated: dict[ir.Value, np.ndarray | None] = {}
        self._untyped = False
        self.earlier: dict[ir.Value, ir.Value] = {}
        self.info_of: Callable[[ir.Value], tuple[ir.DataType | None, Any]] | None = None

    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The elements of ``value`` if it is constant and small, else None.

        An initializer that is also a graph input can be overridden at run time: not constant.
        """
        outer, self._untyped = self._untyped, False
        array = None if value is None else self._array(value, 0)
        self._untyped = outer  # it may have been asked for on the way to another
        return array

    def scalar(self, value: ir.Value | None) -> float | None:
        """The one element of ``value`` as a float, or None."""
        array = self.array(value)
        if array is None or array.size != 1:
            return None
        number = float(array.reshape(()).astype(np.float64))
        return number if math.isfinite(number) else None

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The elements of ``value`` as integers, or None."""
        array = self.array(value)
        if array is None or array.dtype.kind not in "iub":
            return None
        return tuple(int(element) for element in array.reshape(-1))

    def repeated(self, value: ir.Value | None) -> np.ndarray | None:
        """``value`` if it is a stored constant whose elements are all one number, else None.

        Rows of up to 65,536 elements are read, if they are in the file itself.
        """
        if value is None:
            return None
        if value not in self._repeated:
            array = self.array(value)
            tensor = stored_tensor(value)
            if array is None and tensor is not None and not isinstance(tensor, ir.ExternalTensor):
                array = _small_array(tensor, _MOST_REPEATED)
            same = array is not None and array.size > 0 and bool((array == array.flat[0]).all())
            self._repeated[value] = array if same else None
        return self._repeated[value]

    def unrounded(self, node: ir.Node | None) -> ir.Value | None:
        """Return what ``node`` gives back but for a rounding: it is the DequantizeLinear of a
        QuantizeLinear with the same stored scale and zero point; None for any other."""
        before = None
        if node is not None and standard(node) == "DequantizeLinear":
            before = producer_of(node.inputs[0], "QuantizeLinear")
        if node is None or before is None or self.array(before.inputs[0]) is not None:
            return None
        for a, b in itertools.zip_longest(before.inputs[1:], node.inputs[1:]):
            x, y = self.array(a), self.array(b)
            same = x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y)
            stored = a is b and (a is None or stored_tensor(a) is not None)
            if not (same or stored):
                return None
        axes = [(n.attributes.get_int("axis", 1), n.attributes.get_int("block_size", 0))
                for n in (before, node)]  # fmt: skip
        return before.inputs[0] if axes[0] == axes[1] else None

    def rounds(self, node: ir.Node) -> bool:
        """Return whether ``node`` is one half of pairs that quantize a value and take it back."""
        output, halves = node.outputs[0], [node]
        if standard(node) == "QuantizeLinear" and not output.is_graph_output():
            halves = [reader for reader, _ in output.uses()]
        return all(self.unrounded(half) is not None for half in halves)

    def _array(self, value: ir.Value, depth: int) -> np.ndarray | None:
        if value in self._arrays:
            return self._arrays[value]
        result = self._evaluate(value, depth)
        # A type that is not known yet may be known later, once the calls of a function are.
        if result is not None or not self._untyped:
            self._arrays[value] = result
        return result

    def _evaluate(self, value: ir.Value, depth: int) -> np.ndarray | None:
        tensor = stored_tensor(value)
        if tensor is not None:
            return _small_array(tensor)
        node = value.producer()
        if node is None or depth > _MAX_DEPTH or not standard(node) or depends_on_caller(node):
            return None
        if value in self.earlier:
            return self._array(self.earlier[value], depth + 1)
        if node.op_type in ("Shape", "Size"):
            dims = self._dims(value)
            sizes = None if dims is None else _static(dims)
            if sizes is not None and node.op_type == "Size":
                return np.array(math.prod(sizes.tolist()), np.int64)
            return sizes
        if node.op_type not in _FOLLOWED:
            return None
        sources = node.inputs[:1] if node.op_type == "CastLike" else node.inputs
        parts: list[np.ndarray] = []
        for source in sources:
            part = None if source is None else self._array(source, depth + 1)
            if part is None and node.op_type in ("Gather", "Slice") and not parts:
                part = self._dims(source)
            if part is None:
                return None
            parts.append(part)
        to = self._type_like(node) if node.op_type == "CastLike" else 0
        return _applied(node, parts, to) if parts else None

    def _type_like(self, node: ir.Node) -> int:
        """Return the element type that a CastLike gives; 0 where it is not known."""
        like = node.inputs[1]
        dtype = node.outputs[0].dtype or (None if like is None else like.dtype)
        if dtype is None and like is not None and self.info_of is not None:
            dtype = self.info_of(like)[0]
        self._untyped = self._untyped or dtype is None
        return int(dtype or 0)

    def _dims(self, value: ir.Value | None) -> np.ndarray | None:
        """Return what ``Shape(x)`` gives as far as it is known, in integers and symbols."""
        node = producer_of(value, "Shape", "Size", "Cast")
        if node is not None and node.op_type == "Cast":
            dtype = ir.DataType(node.attributes.get_int("to", 0))
            holds_sizes = dtype.is_integer() and dtype.bitwidth > 16
            return self._dims(node.inputs[0]) if holds_sizes else None
        source = None if node is None or depends_on_caller(node) else node.inputs[0]
        if node is None or source is None:
            return None
        dims = None if source.shape is None else tuple(source.shape)
        if dims is None and self.info_of is not None:
            dims = self.info_of(source)[1]
        if dims is None:
            self._untyped = True
            return None
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        return np.array(dims[start:end], object)


def _applied(node: ir.Node, parts: list[np.ndarray], to: int) -> np.ndarray | None:
    op, data = node.op_type, parts[0]
    try:
        with np.errstate(all="ignore"):
            if op in _BINARY:
                return _binary(op, data, parts[1])
            if op in _UNARY:
                floats = data.dtype.kind not in "iub"
                return np.asarray(_UNARY[op](data)).astype(data.dtype) if floats else None
            if op == "ReduceProd":
                exact = data.dtype.kind in "iu"  # a product of floats is rounded
                product = multiplied(node, data.astype(object), parts[1:]) if exact else None
                return None if product is None else product.astype(data.dtype)
            if op in SCALED:
                return _quantized_number(node, *parts)
            if op not in REARRANGED:
                return _converted(data, to or node.attributes.get_int("to", 0))
            moved = rearranged(node, parts)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return None if moved is None else _static(moved)


def _quantized_number(
    node: ir.Node, data: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> np.ndarray | None:
    """Quantize to integers, or make floats of them, by one scale; nothing else is followed."""
    quantizes = node.op_type == "QuantizeLinear"
    if zero is None:
        of_default_type = quantizes and not node.attributes.get_int("output_dtype", 0)
        zero = np.zeros((), np.uint8 if of_default_type else data.dtype)
    if scale.size != 1 or zero.size != 1 or zero.dtype.kind not in "iu":
        return None
    unit, offset = scale.reshape(()), zero.reshape(()).astype(np.int64)
    if not quantizes:
        return np.asarray((data.astype(np.int64) - offset).astype(scale.dtype) * unit)
    info = np.iinfo(zero.dtype)
    codes = np.clip(np.rint(data / unit) + offset, info.min, info.max)
    return np.asarray(codes.astype(info.dtype))


def _static(array: np.ndarray) -> np.ndarray | None:
    """Return the elements; None where they are many, or sizes that are not all known."""
    if array.size > MAX_ELEMENTS:
        return None
    if array.dtype != object:
        return array
    static = all(isinstance(size, int) for size in array.reshape(-1))
    return array.astype(np.int64) if static else None


def _binary(op: str, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    integers = left.dtype.kind in "iu"
    if integers and op in ("Div", "Pow"):
        return None
    if math.prod(np.broadcast_shapes(left.shape, right.shape)) > MAX_ELEMENTS:
        return None
    if not integers:
        return np.asarray(_BINARY[op](left, right)).astype(left.dtype)
    exact = np.asarray(_BINARY[op](left.astype(object), right.astype(object)), object)
    info = np.iinfo(left.dtype)
    kept = all(info.min <= number <= info.max for number in exact.reshape(-1))
    return exact.astype(left.dtype) if kept else None


def _converted(source: np.ndarray, to: int) -> np.ndarray | None:
    dtype = ir.DataType(to)
    converted = source.astype(dtype.numpy())
    # Of a float that an integer type does not hold every machine makes something else.
    lossy = dtype.is_integer() and source.dtype.kind not in "iub"
    return None if lossy and not (converted == np.trunc(source)).all() else converted


def rounding_of(constant: np.ndarray) -> float:
    """Return how far from a float constant, relative to it, the number may be that it was rounded
    from to its type: half an ulp; 0 of an integer."""
    number = abs(float(constant.flat[0]))
    if constant.dtype.kind in "iu" or not number:
        return 0.0
    info = ml_dtypes.finfo(constant.dtype)  # type: ignore[no-untyped-call]
    ulp = max(math.frexp(number)[1] - 1, info.minexp) - info.nmant
    return math.ldexp(0.5, ulp) / number


def is_ordinary(factor: float, dtype: ir.DataType | None) -> bool:
    """Return whether a factor of x, of 1 / rms or under the root leaves ordinary rows numbers.

    In more than a half range its fourth power is a normal number, so that its square has as far to
    go again. In float16 the squares of any row are near the ends, and that of the factor is to be a
    number at all.
    """
    square = factor * factor
    if dtype not in (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        return 0.0 < square < math.inf
    info = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    return math.sqrt(info.smallest_normal) <= square <= math.sqrt(info.max)


def stored_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer that no caller can replace, or of a Constant node."""
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = producer_of(value, "Constant")
    if node is None or depends_on_caller(node):
        return None
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.as_tensor()
        if name in _VALUE_TYPES:
            return ir.Tensor(np.asarray(attribute.value, _VALUE_TYPES[name]))
    return None


def _small_array(tensor: ir.TensorProtocol, most: int = MAX_ELEMENTS) -> np.ndarray | None:
    if tensor.size > most or tensor.dtype == ir.DataType.STRING:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError, TypeError):
        # The file of an external tensor may be absent: its number is then unknown.
        return None

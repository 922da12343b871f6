"""The stored tensors of a model: where they hang, and whether their data fits their shape."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.printable import quoted, short

MAX_PROTO_BYTES = 2**31 - 1
"""Largest protobuf message, by the protobuf specification."""

_TENSORS = frozenset((ir.AttributeType.TENSOR, ir.AttributeType.TENSORS))

LARGE_BYTES = 1024
"""Tensors from this size on go to a data file; shapes and epsilons stay in the graph."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TensorSlot:
    """A stored tensor and how to put another in its place.

    Attributes:
        name: of the initializer, or of the node that holds the tensor in an attribute.
        tensor: the tensor.
        put: replaces it in the model.
    """

    name: str
    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]

    @property
    def is_external(self) -> bool:
        """Return whether its bytes are in another file."""
        return isinstance(self.tensor, ir.ExternalTensor)

    @property
    def nbytes(self) -> int:
        """Return the size of its data; 0 of strings, which stay in the model."""
        return 0 if isinstance(self.tensor, ir.StringTensor) else self.tensor.nbytes


@contextlib.contextmanager
def lent_slots(model: ir.Model) -> Iterator[list[TensorSlot]]:
    """Provide the stored tensors of a model, which has them again at the end of the block."""
    slots = list(tensor_slots(model))
    try:
        yield slots
    finally:
        for slot in slots:
            slot.put(slot.tensor)


def tensor_slots(model: ir.Model) -> Iterator[TensorSlot]:
    """Yield every stored tensor: initializers and attributes, in all graphs and functions.

    The attributes of a node must not be changed, through ``put`` or otherwise, while this runs.
    """
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                put = functools.partial(setattr, value, "const_value")
                yield TensorSlot(value.name or "", value.const_value, put)
        for node in graph:
            for attribute in node.attributes.data.values():
                if attribute.type not in _TENSORS or attribute.is_ref():
                    continue
                # .value and not .as_tensor(): that asks for every property of the tensor, at 10
                # microseconds each, and raises for an element type that it does not know.
                is_one = attribute.type == ir.AttributeType.TENSOR
                for index, tensor in enumerate([attribute.value] if is_one else attribute.value):
                    put = functools.partial(_put_attribute, node, attribute.name, index)
                    names = (tensor.name, node.name, *(value.name for value in node.outputs))
                    yield TensorSlot(next(filter(None, names), ""), tensor, put)


def _put_attribute(node: ir.Node, name: str, index: int, tensor: ir.TensorProtocol) -> None:
    old = node.attributes[name]
    is_one = old.type == ir.AttributeType.TENSOR
    value = tensor if is_one else [*old.value[:index], tensor, *old.value[index + 1 :]]
    node.attributes[name] = ir.Attr(name, old.type, value, doc_string=old.doc_string)


def check_tensor(slot: TensorSlot) -> None:
    """Check that dims are possible and that the data in the file fits them; no copy is made.

    Raises:
        InputError: naming the tensor.
    """
    tensor = slot.tensor
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        _check_data(slot, *_entries(slot.name, tensor.raw, _elements(slot, tensor.raw.dims)))
    elif isinstance(tensor, ir.ExternalTensor):
        _elements(slot, tensor.shape.numpy())
        _bits(slot.name, tensor.dtype)
    elif isinstance(tensor, ir.StringTensor):
        _check_data(slot, len(tensor.string_data()), _elements(slot, tensor.shape.numpy()))


def _elements(slot: TensorSlot, dims: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    count = math.prod(dims)
    if any(dim < 0 for dim in dims) or count >= 2**63:
        found = f"tensor {quoted(slot.name)} of shape {short(str(list(dims)))}"
        raise _corrupt("A tensor has impossible dimensions.", found)
    return count


def _entries(name: str, proto: onnx.TensorProto, count: int) -> tuple[int, int]:
    """Return how many entries of data a tensor has and needs: bytes, elements or parts of these."""
    bits = _bits(name, proto.data_type)
    size = (count * bits + 7) // 8
    if proto.HasField("raw_data"):
        return len(proto.raw_data), size
    stored = len(getattr(proto, onnx.helper.tensor_dtype_to_field(proto.data_type)))
    is_complex = ir.DataType(proto.data_type).name.startswith("COMPLEX")
    return stored, size if bits < 8 else count * (2 if is_complex else 1)


def _bits(name: str, number: int) -> int:
    """Return the bits of an element; strings have none, and are never raw or external."""
    try:
        return ir.DataType(number).bitwidth
    except (ValueError, TypeError, KeyError) as error:
        raise unknown_type(name, number) from error


def _check_data(slot: TensorSlot, stored: int, needed: int) -> None:
    if stored != needed:
        found = f"tensor {quoted(slot.name)} holds {stored} bytes or entries, not {needed}"
        raise _corrupt("The data of a tensor does not fit its shape.", found)


def unknown_type(name: str, number: int) -> InputError:
    """Return the error for a tensor of a type that this installation does not know."""
    what = "A tensor has no element type that ONNX stores as it is stored."
    return _corrupt(what, f"tensor {quoted(name)} of type number {number}")


def _corrupt(what: str, found: str) -> InputError:
    return InputError(what, found=found, fix="export the model again; the file may be corrupt")


def release(tensor: ir.TensorProtocol | None) -> None:
    """Give the memory of an external tensor back, which is mapped again when it is needed."""
    if isinstance(tensor, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # others look at it
            tensor.release()


def memory_of(tensor: ir.TensorProtocol | None) -> Hashable | None:
    """Return what two views of one piece of PyTorch's or NumPy's memory share; else None."""
    raw: Any = getattr(tensor, "raw", None)
    if isinstance(raw, np.ndarray) and raw.size:
        return raw.ctypes.data, raw.dtype, raw.shape, raw.strides
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        if raw.device.type != "meta" and raw.numel() and raw.data_ptr():
            return str(raw.device), raw.data_ptr(), raw.dtype, tuple(raw.shape), raw.stride()
    return None

"""The stored tensors of a model: where they hang, and whether their data fits their shape."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.printable import quoted, short

MAX_PROTO_BYTES = 2**31 - 1
"""Largest protobuf message, by the protobuf specification."""

LARGE_BYTES = 1024
"""Tensors from this size on go to a data file; shapes and epsilons stay in the graph."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TensorSlot:
    """A stored tensor and how to put another in its place.

    Attributes:
        name: of the initializer, or of the node that holds the tensor in an attribute.
        tensor: the tensor.
        put: replaces it in the model.
        initializer: False for a tensor in an attribute.
    """

    name: str
    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]
    initializer: bool

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
                yield TensorSlot(value.name or "", value.const_value, put, True)
        for node in graph:
            for attribute in node.attributes.data.values():
                # .value and not .as_tensor(): that asks for every property of the tensor, at 10
                # microseconds each, and raises for an element type that it does not know.
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    put = functools.partial(_put_attribute, node, attribute.name, None)
                    yield TensorSlot(_holder(node, attribute.value), attribute.value, put, False)
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                    for index, tensor in enumerate(attribute.value):
                        put = functools.partial(_put_attribute, node, attribute.name, index)
                        yield TensorSlot(_holder(node, tensor), tensor, put, False)


def _holder(node: ir.Node, tensor: ir.TensorProtocol) -> str:
    return tensor.name or node.name or (node.outputs[0].name if node.outputs else "") or ""


def _put_attribute(node: ir.Node, name: str, index: int | None, tensor: ir.TensorProtocol) -> None:
    old = node.attributes[name]
    if index is None:
        node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=old.doc_string)
        return
    tensors = list(old.value)
    tensors[index] = tensor
    node.attributes[name] = ir.AttrTensors(name, tensors, doc_string=old.doc_string)


def check_tensor(slot: TensorSlot) -> None:
    """Check that dims are possible and that the data in the file fits them; no copy is made.

    Raises:
        InputError: naming the tensor.
    """
    tensor = slot.tensor
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        _check_proto(slot, tensor.raw)
    elif isinstance(tensor, ir.ExternalTensor):
        _element_count(slot, tuple(tensor.shape.numpy()))
    elif isinstance(tensor, ir.StringTensor):
        count = _element_count(slot, tuple(tensor.shape.numpy()))
        if count != len(tensor.string_data()):
            raise _misfit(slot, len(tensor.string_data()), count)


def _check_proto(slot: TensorSlot, proto: onnx.TensorProto) -> None:
    count = _element_count(slot, tuple(proto.dims))
    try:
        bits = ir.DataType(proto.data_type).bitwidth
    except (ValueError, TypeError, KeyError) as error:
        raise unknown_type(slot.name, proto.data_type) from error
    stored, needed = len(proto.raw_data), (count * bits + 7) // 8
    if not proto.HasField("raw_data"):  # an entry a byte, or an element, or half a complex number
        stored = len(getattr(proto, onnx.helper.tensor_dtype_to_field(proto.data_type)))
        is_complex = slot.tensor.dtype.name.startswith("COMPLEX")
        needed = needed if bits < 8 else count * (2 if is_complex else 1)
    if stored != needed:
        raise _misfit(slot, stored, needed)


def unknown_type(name: str, number: int) -> InputError:
    """Return the error for a tensor of a type that this installation does not know."""
    what = "A tensor has no element type that ONNX knows."
    return _corrupt(what, f"tensor {quoted(name)} of type number {number}")


def _element_count(slot: TensorSlot, dims: tuple[int, ...]) -> int:
    count = math.prod(dims)
    if any(dim < 0 for dim in dims) or count >= 2**63:
        found = f"tensor {quoted(slot.name)} of shape {short(str(list(dims)))}"
        raise _corrupt("A tensor has impossible dimensions.", found)
    return count


def _misfit(slot: TensorSlot, stored: int, needed: int) -> InputError:
    found = f"tensor {quoted(slot.name)} holds {stored} bytes or entries, not {needed}"
    return _corrupt("The data of a tensor does not fit its shape.", found)


def _corrupt(what: str, found: str) -> InputError:
    return InputError(what, found=found, fix="export the model again; the file may be corrupt")


def memory_of(tensor: ir.TensorProtocol | None) -> Hashable | None:
    """Return what two views of one piece of PyTorch's or NumPy's memory share; else None."""
    raw: Any = getattr(tensor, "raw", None)
    if isinstance(raw, np.ndarray) and raw.size:
        return raw.ctypes.data, raw.dtype.str, raw.shape, raw.strides
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        if raw.device.type != "meta" and raw.numel() and raw.data_ptr():
            return str(raw.device), raw.data_ptr(), raw.dtype, tuple(raw.shape), raw.stride()
    return None


def forget_negative_dims(model: ir.Model) -> int:
    """Make negative dimensions of values unknown, as runtimes read them; return how many had one.

    Some exporters write -1 for "any size". Taken as a number it would give wrong row lengths.
    """
    changed = 0
    for graph in all_graphs(model):
        for value in chain(graph.inputs, *(node.outputs for node in graph)):
            dims = () if value.shape is None else value.shape.dims
            read = [None if isinstance(dim, int) and dim < 0 else dim for dim in dims]
            if read != list(dims):
                value.shape = ir.Shape(read)
                changed += 1
    return changed

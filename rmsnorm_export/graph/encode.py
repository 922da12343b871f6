"""A model in the protobuf wire format, its large tensors written one by one.

onnx_ir copies every tensor into a ModelProto and protobuf copies that into bytes: memory for
several times the weights. Here the model is encoded with a short mark in the place of each large
tensor's data. The data itself goes out when its turn comes, and every length in front of it is put
right: the bytes are those that protobuf makes of the whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.unknown_fields import (  # type: ignore[import-untyped,unused-ignore]
    UnknownFieldSet,
)

from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.graph.external import computed_by
from rmsnorm_export.graph.tensors import TensorSlot
from rmsnorm_export.graph.wire import splice
from rmsnorm_export.printable import quoted, short

LARGE_BYTES = 1024
"""Tensors from this size on are written apart from the graph; shapes and epsilons stay in it."""

Swap = tuple[TensorSlot, ir.TensorProtocol]
"""A place of the model and the tensor that is written there instead of its own."""


class Sink(Protocol):
    """Something to write to."""

    def write(self, data: Any, /) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """An encoded model whose large tensors are not in memory yet.

    Attributes:
        pieces: bytes, and tensors whose data belongs between them.
        size: bytes in all.
    """

    pieces: tuple[memoryview | Swap, ...]
    size: int

    def write(self, file: Sink) -> None:
        """Write it all; one tensor at a time is in memory.

        Raises:
            InputError: the data of a tensor cannot be had, or does not fit its shape.
            OSError: writing failed, or reading a tensor that lies in a file.
        """
        for piece in self.pieces:
            if isinstance(piece, memoryview):
                file.write(piece)
            else:
                write_tensor(*piece, file)


@dataclasses.dataclass(slots=True)
class _Counter:
    """Counts what goes through. It has no ``fileno``: NumPy would write past Python's buffer, and
    say of a full disk only how much it wrote."""

    file: Sink
    count: int = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.file.write(view)
        self.count += view.nbytes
        return view.nbytes


def write_tensor(slot: TensorSlot, tensor: ir.TensorProtocol, file: Sink) -> None:
    """Write the data of ``tensor``, without a copy where it can be had without.

    Raises:
        InputError: there is more or less of it than its shape says.
    """
    counter = _Counter(file)
    if hasattr(tensor, "tofile"):
        tensor.tofile(counter)
    else:
        counter.write(tensor.tobytes())
    if counter.count != tensor.nbytes:
        raise InputError(
            "The data of a tensor does not fit its shape.",
            found=f"tensor {quoted(slot.name)} has {counter.count} bytes, its shape needs "
            f"{tensor.nbytes}",
            fix="give the tensor data of its own type and shape",
        )


def encode(model: ir.Model, slots: Sequence[TensorSlot], swaps: Sequence[Swap]) -> Encoding:
    """Encode ``model``; large tensors are left for `Encoding.write`.

    Args:
        model: left unchanged.
        slots: all tensors of the model.
        swaps: tensors that are written in the place of those of the model.

    Raises:
        InputError: a text in the model is not UTF-8, or the graph alone passes 2 GiB.
        OSError: a small tensor cannot be read.
    """
    written = {id(slot): (slot, slot.tensor) for slot in slots}
    written |= {id(slot): (slot, tensor) for slot, tensor in swaps}
    mark = secrets.token_bytes(16)
    large: list[Swap] = []
    stand_ins = list(swaps)
    for slot, tensor in written.values():
        stand_in = _stand_in(tensor, mark + len(large).to_bytes(8, "big"))
        if stand_in is not None:
            large.append((slot, tensor))
            stand_ins.append((slot, stand_in))
    with _swapped(slots, stand_ins):
        data = serialize(model)
    marks: list[tuple[int, int]] = []
    position = data.find(mark)
    while position >= 0:
        end = position + len(mark) + 8
        marks.append((position, int.from_bytes(data[end - 8 : end], "big")))
        position = data.find(mark, end)
    sizes = [tensor.nbytes for _, tensor in large]
    pieces, size = splice(data, marks, len(mark) + 8, sizes)
    return Encoding(tuple(large[p] if isinstance(p, int) else p for p in pieces), size)


def _stand_in(tensor: ir.TensorProtocol, data: bytes) -> ir.TensorProtocol | None:
    """The tensor with other data, for the writer alone; None for one that is written as it is."""
    if isinstance(tensor, ir.ExternalTensor | ir.StringTensor):
        return None
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return _proto_stand_in(tensor, data)
    if tensor.nbytes < LARGE_BYTES:
        return None
    return computed_by(tensor, lambda: ir.tensor(list(data), dtype=ir.DataType.UINT8))


def _proto_stand_in(tensor: ir.serde.TensorProtoTensor, data: bytes) -> ir.TensorProtocol | None:
    """onnx_ir writes such a tensor as the proto that it came from, with every field in it."""
    proto = tensor.raw
    if (
        not proto.HasField("raw_data")
        or tensor.dtype.bitwidth == 6  # onnx_ir looks at the data of these when it writes them
        or tensor.nbytes < LARGE_BYTES
        or len(UnknownFieldSet(proto))
    ):
        return None
    light = onnx.TensorProto()
    for name in (field.name for field in proto.DESCRIPTOR.fields):
        if name == "raw_data":
            light.raw_data = data
        elif hasattr(getattr(proto, name), "extend"):  # a repeated field
            getattr(light, name).MergeFrom(getattr(proto, name))
        elif not proto.HasField(name):
            continue
        elif name == "segment":
            light.segment.CopyFrom(proto.segment)
        else:
            setattr(light, name, getattr(proto, name))
    stand_in = ir.serde.TensorProtoTensor(light)
    stand_in.metadata_props.clear()
    stand_in.metadata_props.update(tensor.metadata_props)
    return stand_in


@contextlib.contextmanager
def _swapped(slots: Sequence[TensorSlot], swaps: Sequence[Swap]) -> Iterator[None]:
    """Let other tensors stand in while the model is encoded; names are restored too."""
    names = [(slot.tensor, slot.tensor.name) for slot in slots if slot.initializer]
    try:
        for slot, tensor in swaps:
            slot.put(tensor)
        yield
    finally:
        for slot, _ in swaps:
            slot.put(slot.tensor)
        for tensor, name in names:
            if tensor.name != name:
                tensor.name = name


def serialize(model: ir.Model | onnx.ModelProto) -> bytes:
    """The bytes of a model, its tensors in them, those in external data left where they are.

    Raises:
        InputError: a text in the model is not UTF-8, or the model is larger than 2 GiB.
        OSError: a tensor cannot be read.
    """
    try:
        proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    except ir.serde.SerdeError as error:
        inner: BaseException = error
        while inner.__cause__ is not None and not isinstance(inner, Error | OSError):
            inner = inner.__cause__
        if isinstance(inner, Error | OSError):
            raise inner from error
        if isinstance(inner, UnicodeError):
            raise InputError(
                "A name or text in the model is not UTF-8.",
                found=short(str(inner)),
                fix="repair the program that wrote the model",
            ) from error
        raise
    try:
        data: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise too_large("more than 2 GiB") from error
    return data


def too_large(size: str) -> InputError:
    """The error for a model that no protobuf file can hold."""
    return InputError(
        "The model is too large for one file.",
        found=f"{size} without external data; a protobuf file ends at 2 GiB",
        fix="keep large constants as initializers, so that they can become external data",
    )

"""Large weights of a model that is one file, read and written beside protobuf, which copies them.

In protobuf's wire format a message is a sequence of fields, each with its number, and bytes or a
message after their length. So the data of an initializer is found without protobuf, which reads and
writes the rest, with a token in the place of the data.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

LEAST = 1 << 16
"""Bytes of data that is no part of what protobuf has."""

_RAW_DATA = (7, 5, 9)
"""Numbers of fields: the graph of a model, an initializer of that, its data."""

_VARINT, _BYTES, _SIZES = 0, 2, {1: 8, 5: 4}
"""Kinds of fields; the sizes of other kinds."""

_PLAIN = {"dims", "data_type", "name", "doc_string", "metadata_props", "raw_data"}

Piece = bytes | ir.TensorProtocol


Identity = tuple[int, int, int]
"""Of a file: inode, size and time."""


class MappedTensor(ir.Tensor[Any]):
    """A tensor that is a part of a file, or of bytes.

    Attributes:
        file: the path, and the file that it was of; None of bytes.
        offset: where the tensor begins there.
    """

    file: tuple[Path, Identity] | None = None
    offset: int = 0

    def external(self) -> ir.ExternalTensor | None:
        """Return it as external data, for what maps that; None where the file is another by now.

        A file of several names is no external data, see `external.locate`.
        """
        if self.file is None:
            return None
        path, identity = self.file
        with contextlib.suppress(OSError):
            state = os.stat(path)
            now = state.st_ino, state.st_size, state.st_mtime_ns, state.st_nlink
            if now == (*identity, 1):
                folder, name = os.path.split(os.path.realpath(path))
                shape, ends = ir.Shape(self.shape.numpy()), (self.offset, self.nbytes)
                how: Any = {"shape": shape, "name": self.name, "base_dir": folder}
                return ir.ExternalTensor(name, *ends, self.dtype, **how)
        return None


def parse(
    data: bytes | mmap.mmap, file: tuple[Path, Identity] | None = None
) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return a model, and by name those initializers whose data protobuf is not given.

    What is no plain sequence of fields is left to protobuf as a whole, as are types of parts of
    bytes, and data that does not fit its shape.

    Args:
        data: of a file, as it is or mapped, which the initializers are parts of.
        file: where and which it is.

    Raises:
        DecodeError: protobuf does not read it.
    """
    taken: dict[bytes, tuple[int, int]] = {}

    def take(reader: BinaryIO, length: int) -> bytes:
        if length < LEAST:
            return reader.read(length)
        token = secrets.token_bytes()
        taken[token] = reader.tell(), length
        reader.seek(length, os.SEEK_CUR)
        return token

    reader: Any = io.BytesIO(data) if isinstance(data, bytes) else data
    proto, tensors = onnx.ModelProto(), dict[str, ir.TensorProtocol]()
    try:
        parts = _replaced(reader, len(data), _RAW_DATA, take)
        proto.ParseFromString(b"".join(map(bytes_of, parts)))
    except ValueError:
        taken.clear()
        proto.ParseFromString(data[:])
    for one in proto.graph.initializer if taken else ():
        if (place := taken.get(one.raw_data)) is None:
            continue
        if (tensor := _tensor(one, data, *place)) is None:
            one.raw_data = data[place[0] : sum(place)]
            continue
        tensors[one.name] = tensor
        tensor.file, tensor.offset = file, place[0]
    return proto, tensors


def _tensor(
    proto: onnx.TensorProto, data: bytes | mmap.mmap, offset: int, length: int
) -> MappedTensor | None:
    """Return a tensor of data that is as its shape and type say."""
    fields = {field.name for field, value in proto.ListFields() if value != 0}
    if fields <= _PLAIN and proto.name and min(proto.dims, default=0) >= 0:
        with contextlib.suppress(ValueError, TypeError):  # of which the type is, or the shape
            like, kind = ir.serde.TensorProtoTensor(proto), ir.DataType(proto.data_type)
            if kind.bitwidth >= 8:
                own = np.frombuffer(data, np.uint8, length, offset)
                own = own.view(kind.numpy().newbyteorder("<"))
                tensor = MappedTensor(own.reshape(proto.dims), kind, name=like.name)
                tensor.doc_string = like.doc_string
                tensor.metadata_props.update(like.metadata_props)
                return tensor
    return None


def serialized(model: ir.Model) -> list[Piece]:
    """Return what the bytes of a model are made of: bytes, and large tensors in their places.

    Raises:
        SerdeError: it cannot be written.
        EncodeError, ValueError: the rest of it is too large for protobuf.
    """
    tokens: dict[bytes, ir.TensorProtocol] = {}
    held = {value: value.const_value for value in model.graph.initializers.values()}
    try:
        for value, tensor in held.items():
            if isinstance(tensor, ir.Tensor | ir.LazyTensor) and tensor.nbytes >= LEAST:
                tokens[token := secrets.token_bytes()] = tensor
                value.const_value = _standing_for(tensor, token)
        content = ir.serde.serialize_model(model).SerializeToString()
    finally:
        for value, tensor in held.items():
            value.const_value = tensor
    if not tokens:
        return [content]

    def put(file: BinaryIO, length: int) -> Piece:
        own = file.read(length)
        return tokens.get(own, own)

    return _replaced(io.BytesIO(content), len(content), _RAW_DATA, put)


def _standing_for(tensor: ir.TensorProtocol, token: bytes) -> ir.LazyTensor:
    """Return a tensor that is described as another one, and has other bytes."""
    own = ir.Tensor(np.frombuffer(token, np.uint8))
    shape = ir.Shape(tensor.shape.numpy())
    standing = ir.LazyTensor(lambda: own, tensor.dtype, shape=shape, name=tensor.name)
    standing.doc_string = tensor.doc_string
    standing.metadata_props.update(tensor.metadata_props)
    return standing


def bytes_of(part: Piece) -> bytes:
    """Return the bytes of a part."""
    return part if isinstance(part, bytes) else part.tobytes()


def _replaced(
    file: BinaryIO, end: int, path: tuple[int, ...], replace: Callable[[BinaryIO, int], Piece]
) -> list[Piece]:
    """Return a message with other bytes in the fields that a path leads to.

    Raises:
        ValueError: it is no plain sequence of fields.
    """
    parts: list[Piece] = []
    for kind, head, length in _fields(file, end):
        if kind != path[0] << 3 | _BYTES:
            parts += [head, file.read(length)]
            continue
        if path[1:]:
            inner = _replaced(file, file.tell() + length, path[1:], replace)
        else:
            inner = [replace(file, length)]
        parts += [_head(path[0], total_size(inner)), *inner]
    return parts


def total_size(parts: Iterable[Piece]) -> int:
    """Return how many bytes these are."""
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield number and kind of each field up to a place, the bytes before its content, its length.

    The content is to be read before the next one.

    Raises:
        ValueError: what is there is no field, or is not whole.
    """
    while (place := file.tell()) < end:
        head, kind = _varint(file)
        length = _SIZES.get(kind & 7, 0)
        if kind & 7 in (_VARINT, _BYTES):
            more, number = _varint(file)
            head, length = head + more, number if kind & 7 == _BYTES else 0
        elif not length:
            raise ValueError("a field of no known kind")
        place += len(head) + length
        if place > end:
            raise ValueError("a field beyond the end")
        yield kind, head, length
        if file.tell() != place:
            raise ValueError("the file ends in a field")


def _varint(file: BinaryIO) -> tuple[bytes, int]:
    content, number = b"", 0
    while not content or content[-1] & 128:
        byte = file.read(1)
        if not byte or len(content) == 10:
            raise ValueError("a number without an end")
        number |= (byte[0] & 127) << 7 * len(content)
        content += byte
    return content, number


def _head(number: int, length: int) -> bytes:
    """Return what is before the content of a field of bytes."""
    return _as_varint(number << 3 | _BYTES) + _as_varint(length)


def _as_varint(number: int) -> bytes:
    content = b""
    while number >= 128:
        content, number = content + bytes([number & 127 | 128]), number >> 7
    return content + bytes([number])

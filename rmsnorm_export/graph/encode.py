"""A model as protobuf bytes."""

from __future__ import annotations

import contextlib

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES
from rmsnorm_export.printable import first_line


def serialize(model: ir.Model | onnx.ModelProto) -> bytes:
    """Return the bytes of a model, external data left where it is.

    A model that fits into one file is copied twice meanwhile; larger weights are external data.

    Raises:
        InputError: protobuf cannot hold the model, or it is larger than 2 GiB.
    """
    data: bytes | None = None
    try:
        proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    except ir.serde.SerdeError as error:
        what, fix = "The model cannot be written as protobuf.", "repair the program that wrote it"
        raise InputError(what, found=first_line(root_of(error)), fix=fix) from error
    with contextlib.suppress(EncodeError, ValueError):
        data = proto.SerializeToString()
    if data is None or len(data) > MAX_PROTO_BYTES:
        what, found = "The model is too large for one file.", "more than 2 GiB of protobuf"
        fix = "keep large constants as initializers, so that they can become external data"
        raise InputError(what, found=found, fix=fix)
    return data


def root_of(error: BaseException) -> BaseException:
    """Return the cause of an error at the end of its chain: onnx_ir wraps whatever goes wrong."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error

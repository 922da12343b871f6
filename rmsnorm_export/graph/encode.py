"""A model as protobuf bytes, other tensors in the place of its own where they are stored apart."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]

from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, TensorSlot
from rmsnorm_export.printable import short

Swap = tuple[TensorSlot, ir.TensorProtocol]
"""A place of the model and the tensor that is written there instead of its own."""


def serialize(model: ir.Model | onnx.ModelProto, swaps: Sequence[Swap] = ()) -> bytes:
    """Return the bytes of a model, external data left where it is.

    A model that fits into one file is copied twice meanwhile; larger weights are external data.

    Args:
        model: left unchanged.
        swaps: tensors that are written in the place of those of the model.

    Raises:
        InputError: a text in the model is not UTF-8, or the model is larger than 2 GiB.
        OSError: a tensor cannot be read.
    """
    try:
        proto = _to_proto(model, swaps) if isinstance(model, ir.Model) else model
    except ir.serde.SerdeError as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, Error | OSError):
            cause = cause.__cause__
        if isinstance(cause, Error | OSError):
            raise cause from error
        if isinstance(cause, UnicodeError):
            what, fix = "A text in the model is not UTF-8.", "repair the program that wrote it"
            raise InputError(what, found=short(str(cause)), fix=fix) from error
        raise
    try:
        data: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise _too_large("more than 2 GiB") from error
    if len(data) > MAX_PROTO_BYTES:
        raise _too_large(f"{len(data)} bytes")
    return data


def _to_proto(model: ir.Model, swaps: Sequence[Swap]) -> onnx.ModelProto:
    try:
        for slot, tensor in swaps:
            slot.put(tensor)
        return ir.serde.serialize_model(model)
    finally:
        for slot, _ in swaps:
            slot.put(slot.tensor)


def _too_large(size: str) -> InputError:
    return InputError(
        "The model is too large for one file.",
        found=f"{size} without external data; a protobuf file ends at 2 GiB",
        fix="keep large constants as initializers, so that they can become external data",
    )

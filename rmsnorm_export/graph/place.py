"""The places of a saved model's tensors: in its file, in a data file, or where they are."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Hashable, Sequence
from itertools import count
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.external import locate, placed
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, TensorSlot, memory_of
from rmsnorm_export.printable import quoted, short

MAX_EMBEDDED_BYTES = MAX_PROTO_BYTES - (1 << 26)
"""Most tensor bytes stored inside a model; 64 MiB are for the graph itself."""

_PAGE = 4096
"""Tensors of more than a MiB begin on a page, so that a runtime can map them."""


def bytes_of(slots: Sequence[TensorSlot]) -> int:
    """Return the size of the data of tensors."""
    return sum(slot.nbytes for slot in slots)


def embed(slots: Sequence[TensorSlot], folder: str | Path) -> None:
    """Put tensors in memory in the place of external ones.

    Args:
        slots: all tensors of a model.
        folder: of the data whose folder is not known; "": then there is none.

    Raises:
        InputError: they do not fit into one file, or are not there.
    """
    if bytes_of(slots) > MAX_EMBEDDED_BYTES:
        raise InputError(
            "The weights do not fit into one model file.",
            found=f"{bytes_of(slots)} bytes; a protobuf file ends at 2 GiB",
            fix="use --weights copy, or write beside the source and use --weights reference",
        )
    for slot in slots:
        if isinstance(slot.tensor, ir.ExternalTensor):
            base, _, _ = locate(slot, folder)
            if not base:
                what, fix = (
                    "The folder of the weights is not known.",
                    "load the model from its path",
                )
                raise InputError(what, found=quoted(slot.name), fix=fix)
            own = placed(slot.tensor, slot.tensor, os.fspath(slot.tensor.location), base)
            slot.put(*ir.external_data.convert_tensors_from_external([own]))


def away_from(slots: Sequence[TensorSlot], target: Path) -> list[TensorSlot]:
    """Return the tensors whose data is not in the folder of the output.

    Raises:
        UsageError: the output would replace the data of one.
        InputError: the data of one cannot be used.
    """
    away = []
    for slot in slots:
        if isinstance(slot.tensor, ir.ExternalTensor):
            # Of a model from memory whose folder is not known, the data can only be beside it.
            base, path, _ = locate(slot, target.parent)
            if path == os.path.realpath(target):
                raise UsageError(
                    "The output would replace the weights of the model.",
                    found=f"{short(str(target), 200)} holds tensor {quoted(slot.name)}",
                    fix="choose another output name",
                )
            if os.path.realpath(base) != os.path.realpath(target.parent):
                away.append(slot)
    return away


def store(
    slots: Sequence[TensorSlot], file: Path, stored: dict[Hashable, ir.ExternalTensor]
) -> list[ir.ExternalTensor]:
    """Write tensors to a data file; what has the same memory, or place in a file, is stored once.

    Args:
        slots: of a model in the folder of the file.
        file: of the data.
        stored: tensors that files of the folder hold already; those of this one are added.

    Returns:
        Where the data of each is.

    Raises:
        OSError: it cannot be written.
    """
    keys = [_storage(slot.tensor) for slot in slots]
    new = {key: slot.tensor for slot, key in zip(slots, keys, strict=True) if key not in stored}
    file.touch()
    tensors = ir.external_data.convert_tensors_to_external(
        list(new.values()), file.parent, file.name, alignment=_PAGE
    )
    stored |= zip(new, tensors, strict=True)
    return [stored[key] for key in keys]


def _storage(tensor: ir.TensorProtocol) -> Hashable:
    """Return what two tensors of the same memory, or of one part of a file, have in common."""
    if isinstance(tensor, ir.ExternalTensor):
        return os.path.realpath(tensor.path), tensor.offset, tensor.nbytes
    return memory_of(tensor) or id(tensor)


def data_file(target: Path, content: Path) -> Path:
    """Return the name of a model's data file: a new one, or of a file with the same content."""
    for number in count(1):
        place = target.with_name(f"{target.name}{f'-{number}' if number > 1 else ''}.data")
        is_same = place.is_file() and not place.is_symlink()
        if not os.path.lexists(place) or (is_same and filecmp.cmp(content, place, shallow=False)):
            break
    return place

"""The places of a saved model's tensors: in its file, in a data file, or where they are."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Hashable, Sequence
from itertools import count
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import Swap
from rmsnorm_export.graph.external import locate, moved
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, TensorSlot, memory_of
from rmsnorm_export.printable import quoted, short

MAX_EMBEDDED_BYTES = MAX_PROTO_BYTES - (1 << 26)
"""Most tensor bytes stored inside a model; 64 MiB are for the graph itself."""

_PAGE = 4096
"""Tensors of more than a MiB begin on a page, so that a runtime can map them."""


def bytes_of(slots: Sequence[TensorSlot]) -> int:
    """Return the size of the data of tensors."""
    return sum(slot.tensor.nbytes for slot in slots)


def embedded(slots: Sequence[TensorSlot], folder: Path) -> list[Swap]:
    """Return the external tensors as tensors in memory.

    Args:
        slots: all tensors of a model.
        folder: of the data whose folder is not known.

    Raises:
        InputError: they do not fit into one file, or are not there.
    """
    if bytes_of(slots) > MAX_EMBEDDED_BYTES:
        raise InputError(
            "The weights do not fit into one model file.",
            found=f"{bytes_of(slots)} bytes; a protobuf file ends at 2 GiB",
            fix="use --weights copy, or write beside the source and use --weights reference",
        )
    swaps: list[Swap] = []
    for slot in slots:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            location, base = os.fspath(tensor.location), os.fspath(tensor.base_dir) or str(folder)
            locate(slot.name, location, base)
            own = moved(tensor, location, base)
            (tensor_in_memory,) = ir.external_data.convert_tensors_from_external([own])
            swaps.append((slot, tensor_in_memory))
    return swaps


def away_from(slots: Sequence[TensorSlot], target: Path) -> list[TensorSlot]:
    """Return the tensors whose data is not in the folder of the output.

    Raises:
        UsageError: the output would replace the data.
        InputError: the data is not there.
    """
    folder = os.path.realpath(target.parent)
    bases: dict[tuple[str, str], str] = {}
    away = []
    for slot in slots:
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        # Without a folder (a model from memory) the data can only be beside the output.
        key = os.fspath(tensor.base_dir) or folder, os.fspath(tensor.location)
        if key not in bases:
            path, _ = locate(slot.name, key[1], key[0])
            if path == os.path.realpath(target):
                raise UsageError(
                    "The output would replace the weights of the model.",
                    found=f"{short(str(target), 200)} holds tensor {quoted(slot.name)}",
                    fix="choose another output name",
                )
            bases[key] = os.path.realpath(key[0])
        if bases[key] != folder:
            away.append(slot)
    return away


def store(
    slots: Sequence[TensorSlot],
    file: Path,
    stored: dict[Hashable, ir.ExternalTensor],
) -> list[tuple[TensorSlot, ir.ExternalTensor]]:
    """Write tensors to a data file; what has the same memory, or place in a file, is stored once.

    Args:
        slots: of a model in the folder of the file.
        file: of the data.
        stored: tensors that files of the folder hold already; those of this one are added.

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
    swaps = []
    for slot, key in zip(slots, keys, strict=True):
        place = moved(stored[key], os.fspath(stored[key].location), str(file.parent))
        place.name = slot.tensor.name or ""
        swaps.append((slot, place))
    return swaps


def _storage(tensor: ir.TensorProtocol) -> Hashable:
    """Return what two tensors of the same memory, or of one part of a file, have in common."""
    if isinstance(tensor, ir.ExternalTensor):
        return os.path.realpath(tensor.path), tensor.offset, tensor.length, tensor.dtype
    return memory_of(tensor) or id(tensor)


def data_file(target: Path, content: Path) -> Path:
    """Return the name of a model's data file: a new one, or of a file with the same content."""
    for number in count(1):
        place = target.with_name(f"{target.name}{f'-{number}' if number > 1 else ''}.data")
        is_same = place.is_file() and not place.is_symlink()
        if not os.path.lexists(place) or (is_same and filecmp.cmp(content, place, shallow=False)):
            break
    return place

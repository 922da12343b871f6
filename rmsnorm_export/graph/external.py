"""External data: its places, the checks before anything reads it, and its new places."""

from __future__ import annotations

import filecmp
import ntpath
import os
import stat
import sys
from collections.abc import Hashable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.policy import UsedPolicy, WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, MAX_PROTO_BYTES, TensorSlot, memory_of
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import TEMP_SUFFIX, Transaction, sync
from rmsnorm_export.system.reading import file_within

MAX_EMBEDDED_BYTES = MAX_PROTO_BYTES - (1 << 26)
"""Most tensor bytes stored inside a model; 64 MiB are for the graph itself."""

_PAGE = 4096
"""Tensors of more than a MiB begin on a page, so that a runtime can map them."""


def adopt_external(slots: Sequence[TensorSlot], folder: Path | None) -> dict[tuple[str, str], str]:
    """Check every external tensor and bind it to an absolute folder; no data is opened.

    A tensor gets a new object where its folder changes, so a tensor shared with the caller's model
    stays as it was.

    Args:
        slots: tensors of a private model.
        folder: of the model file; None: the tensors know theirs, or one that others know (onnx_ir
            tells those of functions none), or only the location is checked.

    Returns:
        Of each folder, "" where it is not known, and location the name of the file in that folder:
        the location, but in Hugging Face's cache, where the folder is ``blobs``.

    Raises:
        InputError: naming tensor and location: a location that is absolute, leaves the folder or
            is no file, or a file that is too short.
    """
    places = {}
    tensors = [slot.tensor for slot in slots]
    folders = {str(one.base_dir) for one in tensors if isinstance(one, ir.ExternalTensor)} - {""}
    otherwise = folder or (folders.pop() if len(folders) == 1 else "")
    for slot, tensor in zip(slots, tensors, strict=True):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        base, path, size = locate(slot, otherwise)
        offset, needed = tensor.offset or 0, tensor.nbytes
        stored = max(0, min(tensor.length or needed, size - offset))
        if stored != needed:
            found = f"{stored} bytes from offset {offset}, for a shape that needs {needed} bytes"
            raise _unusable(slot, f"is too short or too long: {found}")
        location = name = os.fspath(tensor.location)
        if base != os.path.abspath(tensor.base_dir or otherwise):
            name = os.path.basename(path)
        if base != tensor.base_dir:
            slot.put(placed(tensor, name, base, tensor))
        places[base, location] = name
    return places


def placed(
    tensor: ir.TensorProtocol, location: str, folder: str, data: ir.ExternalTensor | None
) -> ir.ExternalTensor:
    """Return an external tensor like another, at this location, of the bytes that ``data`` has."""
    offset, length = (data.offset, data.length) if data is not None else (None, None)
    shape, name = ir.Shape(tensor.shape.numpy()), tensor.name or ""
    external = ir.ExternalTensor(location, offset, length, tensor.dtype, shape=shape, name=name)
    external.base_dir, external.doc_string = folder, tensor.doc_string
    external.metadata_props.update(tensor.metadata_props)
    return external


def locate(slot: TensorSlot, otherwise: str | Path) -> tuple[str, str, int]:
    """Return the folder of an external tensor, its data file, links resolved, and the file's size.

    In Hugging Face's cache the folder is that of the file, and not of the link to it, which onnx_ir
    and some releases of ONNX Runtime refuse.

    A hard link to a file elsewhere, which an archive may bring along, reads that file as a symbolic
    link does, and does not say where it is: a file of several names is refused, as by onnx_ir.

    Args:
        slot: of the tensor.
        otherwise: its folder, if it knows none; "": then nothing but the location is checked.

    Raises:
        InputError: it is not in the folder, is no regular file, or has several names.
    """
    tensor: Any = slot.tensor
    location, base = os.fspath(tensor.location), os.fspath(tensor.base_dir or otherwise)
    if not location or "\0" in location:
        raise _unusable(slot, "is not a file name")
    # Windows spellings are refused everywhere: the file may be used there next.
    if os.path.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        raise _unusable(slot, "is an absolute path")
    if ".." in Path(os.path.normpath(location)).parts or ntpath.normpath(location)[:2] == "..":
        raise _unusable(slot, "leaves the folder of the model")
    if not base:
        return "", "", sys.maxsize
    base = os.path.abspath(base)
    if (file := file_within(Path(base), location)) is None:
        path = os.path.realpath(os.path.join(base, location))
        raise _unusable(slot, f"leaves the folder of the model by a symbolic link to {path}")
    path = os.fspath(file)
    if not path.startswith(os.path.join(os.path.realpath(base), "")):
        base = os.path.dirname(path)
    try:
        state = os.stat(path)
    except OSError as error:
        raise _unusable(slot, f"cannot be read in {base}: {error.strerror}") from error
    if not stat.S_ISREG(state.st_mode):
        raise _unusable(slot, "is not an ordinary file")
    if state.st_nlink > 1:
        why = f"a hard link, a copy is none; or a kill left a *{TEMP_SUFFIX} above: delete it"
        raise _unusable(slot, f"has several names: it is {why}")
    return base, path, state.st_size


def _unusable(slot: TensorSlot, reason: str) -> InputError:
    location = quoted(os.fspath(slot.tensor.location), 200)  # type: ignore[attr-defined]
    found = f"tensor {quoted(slot.name)}: location {location} {short(reason, 400)}"
    fix = "put the whole data file itself into the model's folder, under a relative location"
    return InputError("The external data of a tensor cannot be used.", found=found, fix=fix)


def place(
    slots: Sequence[TensorSlot], target: Path, weights: WeightsPolicy, files: Transaction
) -> tuple[UsedPolicy, tuple[Path, ...], tuple[str, ...]]:
    """Put the tensors of a model where it needs them; no file is replaced.

    Args:
        slots: all tensors of the model.
        target: the model's file to be.
        weights: the policy.
        files: of the save.

    Returns:
        The policy used, new files of external data, and notes.

    Raises:
        UsageError: the policy does not fit, or the output would replace the data of a tensor.
        InputError: the data of one cannot be used.
    """
    external = [slot for slot in slots if slot.is_external]
    away = [slot for slot in external if _is_away(slot, target)]
    if weights == "embed":
        embed(slots, target.parent)
        return "embed" if external else "none", (), ()
    if away and weights == "reference":
        base, _, _ = locate(away[0], target.parent)
        found = f"tensor {quoted(away[0].name)} is in {base}, not in {target.parent}"
        raise not_in_place(found)
    used: UsedPolicy = "copy" if away else "reference" if external else "none"
    own = [slot for slot in slots if not slot.is_external]
    is_full = _bytes_of(own) > MAX_EMBEDDED_BYTES
    moving = away + [slot for slot in own if is_full and slot.nbytes >= LARGE_BYTES]
    if not moving:
        return used, (), ()
    temp = files.temp(target)
    stored = store(moving, temp, {})
    sync(temp)
    file, is_there = _data_file(target, temp)
    for slot, tensor in zip(moving, stored, strict=True):
        slot.put(placed(slot.tensor, file.name, str(target.parent), tensor))
    if is_there:
        temp.unlink()
        return used, (), (f"weights were already in {quoted(file.name)}",)
    files.publish(temp, file)
    return used, (file,), (f"weights of {_bytes_of(moving)} bytes are in {quoted(file.name)}",)


def not_in_place(found: str) -> UsageError:
    """Return the error for weights that the output cannot refer to."""
    what = "Weights can be referenced in place only from the folder that they are in."
    fix = "use --weights copy; or, but in Hugging Face's cache, write into the weights' folder"
    return UsageError(what, found=short(found, 400), fix=fix)


def _is_away(slot: TensorSlot, target: Path) -> bool:
    """Return whether the data of a tensor is not in the folder of the output."""
    # Of a model from memory whose folder is not known, the data can only be next to it.
    base, path, _ = locate(slot, target.parent)
    if path == os.path.realpath(target):
        what, fix = "The output would replace the weights of the model.", "choose another name"
        found = f"{short(str(target), 200)} holds tensor {quoted(slot.name)}"
        raise UsageError(what, found=found, fix=fix)
    return os.path.realpath(base) != os.path.realpath(target.parent)


def _bytes_of(slots: Sequence[TensorSlot]) -> int:
    return sum(slot.nbytes for slot in slots)


def embed(slots: Sequence[TensorSlot], folder: str | Path) -> None:
    """Put tensors in memory in the place of external ones.

    Args:
        slots: all tensors of a model.
        folder: of the data whose folder is not known; "": then there is none.

    Raises:
        InputError: they do not fit into one file, or are not there.
    """
    if _bytes_of(slots) > MAX_EMBEDDED_BYTES:
        what, found = "The weights do not fit into one model file.", f"{_bytes_of(slots)} bytes"
        fix = "use --weights copy, or write beside the source and use --weights reference"
        raise InputError(what, found=f"{found}; a protobuf file ends at 2 GiB", fix=fix)
    for slot in slots:
        if isinstance(slot.tensor, ir.ExternalTensor):
            base, _, _ = locate(slot, folder)
            if not base:
                what, fix = "The folder of the weights is not known.", "load it from its path"
                raise InputError(what, found=quoted(slot.name), fix=fix)
            own = placed(slot.tensor, os.fspath(slot.tensor.location), base, slot.tensor)
            slot.put(*ir.external_data.convert_tensors_from_external([own]))


def store(
    slots: Sequence[TensorSlot], file: Path, stored: dict[Hashable, ir.ExternalTensor]
) -> list[ir.ExternalTensor]:
    """Write tensors to a data file; those of one memory, or place in a file, are stored once.

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
    if new:  # or it would write an empty file
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


def _data_file(target: Path, content: Path) -> tuple[Path, bool]:
    """Return the name of a model's data file, and whether there is one with the same content."""
    for number in count(1):
        place = target.with_name(f"{target.name}{f'-{number}' if number > 1 else ''}.data")
        if not os.path.lexists(place):
            break
        state = place.lstat()
        is_own = stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        if is_own and filecmp.cmp(content, place, shallow=False):
            return place, True
    return place, False

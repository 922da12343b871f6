"""External data: where it may lie, and what is checked of it before anything reads it."""

from __future__ import annotations

import ntpath
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.tensors import TensorSlot
from rmsnorm_export.printable import quoted, short


def adopt_external(slots: Sequence[TensorSlot], folder: Path | None) -> set[tuple[str, str]]:
    """Check every external tensor and bind it to an absolute folder; no data is opened.

    A tensor gets a new object where its folder changes, so a tensor shared with the caller's model
    stays as it was.

    Args:
        slots: tensors of a private model.
        folder: of the model file; None: the tensors know theirs, or nobody does, and then only what
            can be told from the location is checked.

    Returns:
        The folders, "" where it is not known, and the locations.

    Raises:
        InputError: naming tensor and location: a location that is absolute, leaves the folder or
            is no file, or a file that is too short.
    """
    places = set()
    for slot in slots:
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        base, _, size = locate(slot, folder or "")
        offset, needed = tensor.offset or 0, tensor.nbytes
        if tensor.length and tensor.length != needed:
            found = f"stores {tensor.length} bytes for a shape that needs {needed} bytes"
            raise _unusable(slot, found)
        if offset + needed > size:
            found = f"is too short: {size} bytes, while {needed} are needed from offset {offset}"
            raise _unusable(slot, found)
        if base != tensor.base_dir:
            slot.put(placed(tensor, tensor, os.fspath(tensor.location), base))
        places.add((base, os.fspath(tensor.location)))
    return places


def placed(
    tensor: ir.TensorProtocol, data: ir.ExternalTensor, location: str, folder: str
) -> ir.ExternalTensor:
    """Return an external tensor like another, with the data of ``data``, at this location."""
    return ir.ExternalTensor(
        location,
        data.offset,
        data.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=folder,
    )


def locate(slot: TensorSlot, otherwise: str | Path) -> tuple[str, str, int]:
    """Return the folder of an external tensor, its data file, links resolved, and the file's size.

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
    path = os.path.realpath(os.path.join(base, location))
    if not path.startswith(os.path.join(os.path.realpath(base), "")):
        raise _unusable(slot, f"leaves the folder of the model by a symbolic link to {path}")
    try:
        state = os.stat(path)
    except OSError as error:
        raise _unusable(slot, f"cannot be read in {base}: {error.strerror}") from error
    if not stat.S_ISREG(state.st_mode):
        raise _unusable(slot, "is not an ordinary file")
    if state.st_nlink > 1:
        raise _unusable(slot, "has several names: it is a hard link, a copy is none")
    return base, path, state.st_size


def _unusable(slot: TensorSlot, reason: str) -> InputError:
    location = quoted(os.fspath(slot.tensor.location), 200)  # type: ignore[attr-defined]
    return InputError(
        "The external data of a tensor cannot be used.",
        found=f"tensor {quoted(slot.name)}: location {location} {short(reason, 400)}",
        fix="put the whole data file itself into the model's folder, under a relative location",
    )

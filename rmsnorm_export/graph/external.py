"""External data: where it may lie, and what is checked of it before anything reads it."""

from __future__ import annotations

import ntpath
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.tensors import TensorSlot
from rmsnorm_export.printable import quoted, short


def adopt_external(slots: Sequence[TensorSlot], folder: Path | None) -> dict[str, int]:
    """Check every external tensor and bind it to an absolute folder; no data is opened.

    A tensor gets a new object where its folder changes, so a tensor shared with the caller's model
    stays as it was.

    Args:
        slots: tensors of a private model.
        folder: folder of the model file; None: the tensors know theirs, or nobody does, and then
            only what can be told from the location is checked.

    Returns:
        The size of each file by its path; without those whose folder is not known.

    Raises:
        InputError: naming tensor and location: a location that is absolute, leaves the folder or
            is no file, or a file that is too short.
    """
    files: dict[tuple[str, str], tuple[str, int]] = {}
    for slot in slots:
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = os.fspath(tensor.location)
        base = str(folder) if folder else os.fspath(tensor.base_dir)
        base = os.path.abspath(base) if base else ""
        if base and (base, location) not in files:
            files[base, location] = locate(slot.name, location, base)
        elif not base:
            _check_location(slot.name, location)
        _check_range(slot.name, tensor, files[base, location][1] if base else None)
        if base != tensor.base_dir:
            slot.put(moved(tensor, location, base))
    return dict(files.values())


def moved(tensor: ir.ExternalTensor, location: str, folder: str) -> ir.ExternalTensor:
    """Return the same tensor at another location; offset and length stay."""
    return ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=folder,
    )


def _check_location(name: str, location: str) -> None:
    if not location or "\0" in location:
        reason = "is not a file name"
    # Windows spellings are refused everywhere: the file may be used there next.
    elif os.path.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        reason = "is an absolute path"
    elif ".." in Path(os.path.normpath(location)).parts or ntpath.normpath(location)[:2] == "..":
        reason = "leaves the folder of the model"
    else:
        return
    fix = "keep the data file in the folder of the model, under a relative location"
    raise _unusable(name, location, reason, fix)


def locate(name: str, location: str, base: str) -> tuple[str, int]:
    """Return the path of the data file of a tensor, symbolic links resolved, and its size.

    A hard link to a file elsewhere, which an archive may bring along, reads that file as a symbolic
    link does, and does not say where it is: a file of several names is refused, as by onnx_ir.

    Raises:
        InputError: it is not in the folder, is no regular file, or has several names.
    """
    _check_location(name, location)
    path = os.path.realpath(os.path.join(base, location))
    fix = "put the data file itself into the folder of the model"
    if not path.startswith(os.path.join(os.path.realpath(base), "")):
        reason = f"leaves the folder of the model by a symbolic link to {short(path, 200)}"
        raise _unusable(name, location, reason, fix)
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _unusable(name, location, f"does not exist in {short(base, 200)}", fix) from error
    except OSError as error:
        raise _unusable(name, location, f"cannot be read ({error.strerror})", fix) from error
    if not stat.S_ISREG(info.st_mode):
        raise _unusable(name, location, "is not an ordinary file", fix)
    if info.st_nlink > 1:
        fix = "put a copy of the data file in its place; the copy has one name"
        raise _unusable(name, location, "has several names: it is a hard link", fix)
    return path, info.st_size


def _check_range(name: str, tensor: ir.ExternalTensor, size: int | None) -> None:
    offset, length = tensor.offset or 0, tensor.length
    needed = tensor.nbytes
    if length and length != needed:
        reason = f"stores {length} bytes for a shape that needs {needed} bytes"
    elif size is not None and offset + needed > size:
        reason = f"is too short: {size} bytes, while {needed} are needed from offset {offset}"
    else:
        return
    fix = "export the model again, or fetch its data file again"
    raise _unusable(name, os.fspath(tensor.location), reason, fix)


def _unusable(name: str, location: str, reason: str, fix: str) -> InputError:
    return InputError(
        "The external data of a tensor cannot be used.",
        found=f"tensor {quoted(name)}: location {quoted(location, 200)} {reason}",
        fix=fix,
    )

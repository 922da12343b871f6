"""Files that somebody else may have written: regular ones only, opened once, within a bound.

A pipe or a device in the place of a file would be waited for, or read, without end.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.records import parse_json

LARGEST_TEXT = 1 << 28
"""Bytes of a text that is read; the record of a large model has a few millions."""

LARGEST_LIBRARY, LARGEST_ENGINE = 1 << 32, 1 << 40
"""Bytes of a compiled library, and of an engine with its weights."""

_BLOCK = 1 << 20

StrPath = str | os.PathLike[str]


def open_regular(path: StrPath) -> BinaryIO:
    """Open a regular file for reading, without waiting for anything.

    Raises:
        OSError: it cannot be opened, or is a folder, device, pipe or socket.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "its name holds a zero byte", os.fspath(path))
    _check_kind(os.stat(path), path)  # opening a device may do something already
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_kind(state: os.stat_result, path: StrPath) -> None:
    if not stat.S_ISREG(state.st_mode):
        reason = "it is a folder, device, pipe or socket"
        raise OSError(errno.EINVAL, reason, os.fspath(path))


def read_file(path: StrPath, limit: int = LARGEST_TEXT) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: as `open_regular`; or it has more than ``limit`` bytes, or grows meanwhile.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size or min(limit, _BLOCK)  # 0: a file of the system
        data = file.read(size + 1) if size <= limit else b""
    if size > limit or len(data) > size:
        reason = f"more than {min(size, limit):,} bytes are too many"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return data


def map_file(path: StrPath, limit: int) -> bytes | mmap.mmap:
    """Return the contents of a regular file, read where they are used; it may be renamed meanwhile.

    Raises:
        OSError: as `read_file`.
    """
    with open_regular(path) as file:
        if 0 < os.fstat(file.fileno()).st_size <= limit:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return read_file(path, limit)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 18):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: StrPath, limit: int = LARGEST_TEXT, *, infinite: bool = False) -> Any:
    """Return the content of a JSON file, see `parse_json`.

    Raises:
        OSError: as `read_file`.
        ValueError: as `parse_json`.
    """
    return parse_json(read_file(path, limit), infinite=infinite)


def file_within(folder: Path, name: str) -> Path | None:
    """Return the file that a name in a folder leads to; None where it leads out of the folder.

    Links of Hugging Face's cache do not: from a folder in ``models--*/snapshots`` to a file that is
    right in ``blobs`` of the same ``models--*``.

    Raises:
        OSError, ValueError: the path cannot be followed.
    """
    root, path = Path(os.path.realpath(folder)), Path(os.path.realpath(folder / name))
    if os.path.isabs(name) or ".." in Path(name).parts:
        return None
    above = {place.parent for place in root.parents if place.name == "snapshots"}
    is_blob = is_hub_store(path.parent) and path.parent.parent in above
    return path if root in path.parents or is_blob else None


def is_hub_store(folder: Path) -> bool:
    """Return whether a folder, links resolved, is that of the files in Hugging Face's cache."""
    return folder.name == "blobs" and folder.parent.name.startswith("models--")


def inside(folder: Path, name: str) -> Path:
    """Return the file that a name in a folder leads to, see `file_within`.

    Raises:
        InputError: it leads out of the folder.
        OSError, ValueError: the path cannot be followed.
    """
    if (path := file_within(folder, name)) is None:
        what, found = "A file of the folder lies outside of it.", f"{quoted(name, 200)} of {folder}"
        fix = "copy it into the folder, and name it as it is called there"
        raise InputError(what, found=short(found, 400), fix=fix)
    return path

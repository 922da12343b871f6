"""Shared libraries: the linker ends the process on one that is cut short."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from rmsnorm_export.system.reading import open_regular


def check_library(path: Path) -> None:
    """Raise ``ValueError`` for a file that is no 64-bit ELF library, or not all of one.

    The table of sections is the last thing in the file, as linkers write it.
    """
    with open_regular(path) as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if head[:4] != b"\x7fELF":
        raise ValueError("the file is no shared library")
    if len(head) < 64:
        raise ValueError("the file is cut short")
    order = ">" if head[5] == 2 else "<"
    (sections,) = struct.unpack_from(f"{order}Q", head, 40)
    length, count = struct.unpack_from(f"{order}HH", head, 58)
    if sections + length * count > size:
        raise ValueError("the file is cut short")

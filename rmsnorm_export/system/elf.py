"""Shared libraries: the linker ends the process on one that is cut short."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from rmsnorm_export.system.reading import open_regular


def check_library(path: Path) -> None:
    """Raise ``ValueError`` for what is no 64-bit ELF library of this machine, or not all of one."""
    with open_regular(path) as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if head[:4] != b"\x7fELF":
        raise ValueError("the file is no shared library")
    # The table of sections is the last thing in the file, as linkers write it.
    layout = struct.unpack("=40xQ10xHH2x", head) if len(head) == 64 else (size, 1, 1)
    if layout[0] + layout[1] * layout[2] > size:
        raise ValueError("the file is cut short")

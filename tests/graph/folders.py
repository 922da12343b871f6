"""Compare folders before and after: nothing but what a test asked for may change on disk."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Relative path -> kind and contents of everything below ``folder``.

    Files of more than 64 MiB (all of them sparse here) are told apart by size and time of change.
    """
    entries: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        key = str(path.relative_to(folder))
        if stat.S_ISLNK(info.st_mode):
            entries[key] = ("link", os.readlink(path))
        elif not stat.S_ISREG(info.st_mode):
            entries[key] = ("other", stat.S_IFMT(info.st_mode))
        elif info.st_size > 1 << 26:
            entries[key] = ("large", info.st_size, info.st_mtime_ns, info.st_ino)
        else:
            entries[key] = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
    return entries

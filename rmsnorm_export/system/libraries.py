"""Compiled code is loaded from where nobody else can write, as ssh reads its keys."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system.reading import StrPath, open_regular

_PACKAGE = Path(__file__).resolve().parents[1]

_OPENED: dict[tuple[int, int], BinaryIO] = {}
"""What was loaded, by device and inode. It stays open: the linker takes a name that it has seen for
the same library, and the number of a closed file is given to the next one."""


def loadable(path: StrPath) -> str:
    """Return a name by which the linker opens the very file that was checked here.

    Raises:
        BackendMissingError: somebody else could have written it, see `check_owners`.
        OSError: it cannot be opened, or is no file.
        ValueError: it is no library of this machine, or cut short.
    """
    file = _opened(path)
    state = os.fstat(file.fileno())
    file = _OPENED.setdefault((state.st_dev, state.st_ino), file)
    own = f"/proc/self/fd/{file.fileno()}"
    return own if os.path.exists(own) else os.path.realpath(path)


def check_library(path: StrPath) -> None:
    """Check a library that is to be loaded later, as `loadable` does."""
    _opened(path).close()


def check_owners(path: StrPath) -> Path:
    """Return where a path leads, unless somebody else could have made, changed or put it there.

    The owners of it and of every folder and link above it have to be this user, root, or the owner
    of this package, and the modes must let nobody else write. In a folder with the sticky bit, like
    /tmp, others replace nothing. This package and what it lies in are not asked: who can write them
    changes this very check.

    Raises:
        BackendMissingError: naming what others can write.
        OSError: there is no such file.
    """
    own, place = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    trusted = {0, os.geteuid(), os.stat(__file__).st_uid}
    for part in dict.fromkeys((*reversed(own.parents), own, *reversed(place.parents), place)):
        if part in _PACKAGE.parents or _PACKAGE in (part, *part.parents):
            continue
        state = os.lstat(part)
        problem = f"it belongs to user {state.st_uid}" if state.st_uid not in trusted else ""
        fix = "set XDG_CACHE_HOME to a folder of your own for builds, or copy the file into one"
        if not problem and _others_write(state):
            problem = f"others can write to it (mode {stat.S_IMODE(state.st_mode):04o})"
            fix = f"see that all in it is yours, then chmod go-w '{part}'; or {fix}"
        if problem:
            what = "A library is loaded only from where nobody else can write."
            raise BackendMissingError(what, found=f"{path}: {part}: {problem}", fix=fix)
    return place


def _others_write(state: os.stat_result) -> bool:
    mode = state.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return False
    return bool(mode & 0o002) or (bool(mode & 0o020) and not _is_own_group(state.st_gid))


def _is_own_group(number: int) -> bool:
    """Return whether a group has this user's name and no other member, as many systems make one."""
    import grp  # not on every system
    import pwd

    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
        return group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
    return False


def _opened(path: StrPath) -> BinaryIO:
    """Open a library: its owners, and whether it is whole, for the linker ends the process else."""
    file = open_regular(check_owners(path))  # a link between may lead elsewhere meanwhile
    try:
        head, size = file.read(64), os.fstat(file.fileno()).st_size
        if head[:4] != b"\x7fELF":
            raise ValueError(f"{os.fspath(path)} is no shared library")
        # The table of sections is the last thing in the file, as linkers write it.
        layout = struct.unpack("=40xQ10xHH2x", head) if len(head) == 64 else (size, 1, 1)
        if layout[0] + layout[1] * layout[2] > size:
            raise ValueError(f"{os.fspath(path)} is cut short")
        return file
    except BaseException:
        file.close()
        raise

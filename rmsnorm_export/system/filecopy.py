"""Copy a large file cheaply: a copy-on-write clone where the file system has one, holes kept."""

from __future__ import annotations

import errno
import os

_FICLONE = 0x40049409
"""ioctl request of linux/fs.h: share the extents of another file."""

_CHUNK = 1 << 24


def copy_contents(source: str, target_fd: int) -> str:
    """Fill the empty file ``target_fd`` with the contents of ``source``.

    Returns:
        ``cloned`` when no data had to be moved, else ``copied``.

    Raises:
        OSError: as the operating system says, ENOSPC included.
    """
    source_fd = os.open(source, os.O_RDONLY)
    try:
        if _clone(source_fd, target_fd):
            return "cloned"
        size = os.fstat(source_fd).st_size
        extents = _extents(source_fd, size)
        if sum(end - start for start, end in extents) > _free_bytes(target_fd):
            # Better now than after an hour of copying.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for start, end in extents:
            _copy_range(source_fd, target_fd, start, end)
        os.ftruncate(target_fd, size)
        return "copied"
    finally:
        os.close(source_fd)


def _free_bytes(fd: int) -> int:
    space = os.fstatvfs(fd)
    return space.f_bavail * space.f_frsize


def same_contents(first: str, second: str) -> bool:
    """Whether two files hold the same bytes; reads both, up to the first difference."""
    if os.stat(first).st_size != os.stat(second).st_size:
        return False
    if os.path.samefile(first, second):
        return True
    with open(first, "rb", buffering=0) as one, open(second, "rb", buffering=0) as two:
        while True:
            block = one.read(_CHUNK)
            if block != two.read(len(block) or 1):
                return False
            if not block:
                return True


def _clone(source_fd: int, target_fd: int) -> bool:
    try:
        import fcntl

        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except (ImportError, OSError):
        return False
    return True


def _extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Ranges of a file that hold data; the whole file where the system cannot tell."""
    if not hasattr(os, "SEEK_DATA"):
        return [(0, size)]
    found: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            position = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return found
            return [(0, size)]
        found.append((start, position))
    return found


def _copy_range(source_fd: int, target_fd: int, start: int, end: int) -> None:
    position = start
    kernel = hasattr(os, "copy_file_range")
    while position < end:
        if kernel:
            try:
                moved = os.copy_file_range(
                    source_fd, target_fd, min(end - position, 1 << 30), position, position
                )
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT):
                    raise
                kernel = False  # different file systems, or an old kernel
                continue
        else:
            block = os.pread(source_fd, min(end - position, _CHUNK), position)
            moved = os.pwrite(target_fd, block, position) if block else 0
        if not moved:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        position += moved

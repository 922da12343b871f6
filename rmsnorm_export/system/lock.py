"""Locks: one process at a time; the system lets go of those of a dead one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True, required: bool = True) -> Iterator[int | None]:
    """Hold the lock of a file, which is made where it is missing, and stays.

    Args:
        path: of the file.
        wait: for another process that holds it.
        required: False: go on where the file system has no locks.

    Returns:
        In the block: a descriptor of the file; None where there is no lock.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is False.
        OSError: the file cannot be made, or not be locked.
    """
    import fcntl  # not on Windows, where only this fails

    # The descriptor is not inherited: a process that outlives this one does not hold the lock.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        held: int | None = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if required:
                raise
            held = None
        yield held
    finally:
        os.close(descriptor)

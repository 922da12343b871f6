"""Files: written whole or not at all, copied cheaply, locked, refused in words.

A ``Transaction`` writes to temporary files beside their destination and renames them at the end;
whatever goes wrong, Ctrl-C included, what it made is removed. After ``kill -9`` a hidden file
``.<name>.<random>.rmsnorm-export.tmp`` may stay behind: nothing reads it, it can be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import did_you_mean, short
from rmsnorm_export.system.reading import open_regular

TEMP_SUFFIX = ".rmsnorm-export.tmp"

_FICLONE = 0x40049409
"""ioctl request of linux/fs.h: share the extents of another file."""

_CHUNK = 1 << 24

StrPath = str | os.PathLike[str]


def missing_fix(path: StrPath) -> str:
    """What to do about a path that names no file: the name in its folder that is most like it."""
    folder, name = os.path.split(os.fspath(path))
    with contextlib.suppress(OSError, ValueError):
        if near := did_you_mean(name, os.listdir(folder or "."), alike=0.8):
            return f"{near}or check the path"
    return "check the path"


def is_full(number: int | None) -> bool:
    """Whether this error number says that there is no room for more."""
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def refusals_as(what: str, place: StrPath, *, fix: str, fix_full: str = "") -> Iterator[None]:
    """Say in three lines what the operating system refuses in the block.

    Args:
        what: happened then.
        place: to name where the system names no file, and where the disk is full.
        fix: what to do.
        fix_full: what to do where the disk is full; "": the same.

    Raises:
        InputError: for an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        full = is_full(error.errno)
        name = os.fspath(place) if full or not error.filename else str(error.filename)
        raise InputError(
            what,
            found=f"{short(name, 300)}: {error.strerror or error}",
            fix=fix_full if full and fix_full else fix,
        ) from error


class Transaction:
    """Temporary and published files of one save.

    Usage: ``with Transaction() as files``: ``temp`` any number of times, write, ``publish`` each;
    ``last=True`` marks the file that refers to the others; once it has its name, all stay.
    """

    def __init__(self) -> None:
        self._made: list[Path] = []
        self._folders: list[Path] = []
        self._last: tuple[Path, Path] | None = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        if self._last is not None and _renamed(*self._last):
            # Interrupted after the fact: the model is in place and needs its data files.
            with contextlib.suppress(OSError):
                self._last[0].unlink()
            return
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.unlink()
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def temp(self, target: Path) -> tuple[Path, int]:
        """An empty new file in the folder of ``target``; its path and descriptor.

        Missing folders down to it are made. The mode is what the umask leaves of rw-rw-rw-.
        """
        missing = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._folders.append(folder)
        # File names end at 255 bytes; a cut name is still recognisable.
        stem = target.name.encode("utf-8", "surrogateescape")[:200].decode("utf-8", "ignore")
        path = target.parent / f".{stem}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        self._made.append(path)
        return path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)

    def write_temp(self, target: Path, data: bytes) -> Path:
        """A temporary file beside ``target`` with these contents, on disk when this returns."""
        path, descriptor = self.temp(target)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    def publish(
        self, temp: Path, target: Path, *, replace: bool = False, last: bool = False
    ) -> None:
        """Give ``temp`` its real name, in one step.

        Args:
            temp: a finished, synced file of this transaction.
            target: its name from now on.
            replace: an existing ``target`` is replaced and its mode kept; a symbolic link itself is
                replaced, not the file that it points to.
            last: the save is complete with this file.

        Raises:
            FileExistsError: ``target`` exists and ``replace`` is False.
        """
        if last:
            self._last = (temp, target)
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temp, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(temp, target)
        else:
            _rename_new(temp, target)
            self._made.append(target)
        self._made.remove(temp)
        sync_folder(target.parent)


def _renamed(temp: Path, target: Path) -> bool:
    try:
        return not os.path.lexists(temp) or os.path.samefile(temp, target)
    except OSError:
        return False


def _rename_new(temp: Path, target: Path) -> None:
    """Rename without ever replacing: a link fails when ``target`` exists, a rename would not."""
    try:
        os.link(temp, target)
    except OSError as error:
        if error.errno == errno.EEXIST or target.is_symlink() or target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        os.rename(temp, target)  # no hard links on this file system
    else:
        os.unlink(temp)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, content: str | bytes, *, replace: bool = True) -> None:
    """Write a file, text as UTF-8; it appears whole, or nothing changes.

    What is no plain file (``/dev/null``, a named pipe) is written to as it is.

    Raises:
        FileExistsError: it exists and ``replace`` is False.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with Transaction() as files:
        files.publish(files.write_temp(path, data), path, replace=replace)


def copy_file(source: Path, target: Path) -> None:
    """A copy of ``source`` at the new path ``target``, on disk when this returns.

    Raises:
        OSError: ENOSPC included.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        copy_contents(os.fspath(source), descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_contents(source: str, target_fd: int) -> str:
    """Fill the empty file ``target_fd`` with the contents of ``source``.

    Returns:
        ``cloned`` when no data had to be moved, else ``copied``.

    Raises:
        OSError: as the operating system says, ENOSPC included.
    """
    with open_regular(source) as file:
        source_fd = file.fileno()
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


def _free_bytes(fd: int) -> int:
    space = os.fstatvfs(fd)
    return space.f_bavail * space.f_frsize


def same_contents(first: str, second: str) -> bool:
    """Whether two files hold the same bytes; reads both, up to the first difference."""
    if os.stat(first).st_size != os.stat(second).st_size:
        return False
    if os.path.samefile(first, second):
        return True
    with open_regular(first) as one, open_regular(second) as two:
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
    extents: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            position = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return extents
            return [(0, size)]
        extents.append((start, position))
    return extents


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


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True, required: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is made where it is missing, and stays.

    Args:
        path: of the file.
        wait: for another process that holds it.
        required: False: go on where the file system has no locks.

    Returns:
        In the block: True; False where there is no lock.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is False.
        OSError: the file cannot be made, or not be locked.
    """
    import filelock  # it takes longer to import than most commands need it

    held = filelock.FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        held.acquire()
    except filelock.Timeout as error:
        raise BlockingIOError(errno.EAGAIN, "another process holds it", str(path)) from error
    except OSError:
        if required:
            raise
        yield False
        return
    try:
        yield True
    finally:
        held.release()

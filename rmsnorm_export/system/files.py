"""Files: written whole or not at all, copied, locked, refused in words.

A ``Transaction`` writes to temporary files beside their destination and renames them at the end;
whatever goes wrong, Ctrl-C included, what it made is removed. After ``kill -9`` a hidden file
``.<name>.<random>.rmsnorm-export.tmp`` may stay behind: nothing reads it, it can be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import short
from rmsnorm_export.system.reading import open_regular

TEMP_SUFFIX = ".rmsnorm-export.tmp"

_AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
"""Of renameat2, see linux/fs.h."""

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def refusals_as(what: str, place: StrPath, *, fix: str) -> Iterator[None]:
    """Say in three lines what the operating system refuses in the block.

    Args:
        what: happened then.
        place: to name where the system names no file, and where the disk is full.
        fix: what to do.

    Raises:
        InputError: for an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        name = os.fspath(place) if full or not error.filename else str(error.filename)
        raise InputError(
            what,
            found=f"{short(name, 300)}: {error.strerror or error}",
            fix=fix,
        ) from error


class Transaction:
    """Temporary and published files of one save.

    Usage: ``with Transaction() as files``: ``temp`` any number of times, write, ``publish`` each;
    ``last=True`` marks the file that refers to the others; once it has its name, all stay.
    """

    def __init__(self) -> None:
        self._files: list[Path] = []
        self._folders: list[Path] = []
        self._last: Path | None = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        if self._last is not None and not os.path.lexists(self._last):
            return  # interrupted after the fact: the model is in place and needs its data files
        for path in reversed(self._files):
            path.unlink(missing_ok=True)
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def temp(self, target: Path) -> tuple[Path, int]:
        """Make an empty file in the folder of ``target``, missing folders, too.

        Returns:
            Its path and descriptor.
        """
        missing = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._folders.append(folder)
        # File names end at 255 bytes; a cut name is still recognisable.
        stem = os.fsencode(target.name)[:200].decode("utf-8", "ignore")
        path = target.parent / f".{stem}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        self._files.append(path)
        return path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)

    def write_temp(self, target: Path, data: bytes) -> Path:
        """Write a temporary file beside ``target``, on disk when this returns."""
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
            self._last = temp
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temp, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(temp, target)
        else:
            _rename_new(temp, target)
            self._files.append(target)
        self._files.remove(temp)
        sync(target.parent)


def _rename_new(temp: Path, target: Path) -> None:
    """Rename without ever replacing."""
    if not renameat2(temp, target, NOREPLACE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(temp, target)


def renameat2(source: Path, target: Path, flag: int) -> bool:
    """Rename with a flag, in one step; return False where that is not possible."""
    import ctypes  # --help needs none

    function = getattr(ctypes.CDLL(None), "renameat2", None)
    places = (_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target))
    return function is not None and function(*places, flag) == 0


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
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
    """Copy a file to a new path, on disk when this returns.

    Raises:
        OSError: ENOSPC included.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy, 1 << 24)
        copy.flush()
        os.fsync(copy.fileno())


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is made where it is missing, and stays.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is False.
    """
    import filelock  # it takes longer to import than most commands need it

    try:
        with filelock.FileLock(path, timeout=-1 if wait else 0, thread_local=False):
            yield
    except filelock.Timeout as error:
        raise BlockingIOError(errno.EAGAIN, "another process holds it", str(path)) from error

"""Files: written whole or not at all, copied, refused in words.

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
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import short
from rmsnorm_export.system.reading import open_regular, read_file

TEMP_SUFFIX = ".rmsnorm-export.tmp"

_AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
"""Of renameat2, see linux/fs.h."""

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def refusals_as(what: str, place: StrPath, *, fix: str) -> Iterator[None]:
    """Say in three lines what the operating system refuses in the block, or no UTF-8.

    Args:
        what: happened then.
        place: to name where the system names no file, and where the disk is full.
        fix: what to do.

    Raises:
        InputError: for an ``OSError`` or ``UnicodeError``.
    """
    try:
        yield
    except (OSError, UnicodeError) as error:
        name, reason = place, str(error)
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            name = place if full or not error.filename else str(error.filename)
            reason = error.strerror or reason
        found = f"{short(os.fspath(name), 300)}: {short(reason, 300)}"
        raise InputError(what, found=found, fix=fix) from error


def read_text(path: Path, what: str, *, fix: str) -> str:
    """Return the text of a file, see `read_file` and `refusals_as`."""
    with refusals_as(what, path, fix=fix):
        return read_file(path).decode("utf-8")


class Transaction(contextlib.ExitStack):
    """Temporary and published files of one save.

    Usage: ``with Transaction() as files``: ``temp`` any number of times, ``publish`` each;
    ``last=True`` marks the file that refers to the others; once it has its name, all stay.
    """

    _last: Path | None = None

    def __exit__(self, *error: Any) -> bool | None:
        # Interrupted after the fact, the model is in place and needs its data files.
        if error[0] is None or (self._last is not None and not os.path.lexists(self._last)):
            self.pop_all()
        return super().__exit__(*error)

    def temp(self, target: Path, data: bytes = b"") -> Path:
        """Write a temporary file beside ``target``, on disk when this returns."""
        # File names end at 255 bytes; a cut name is still recognisable.
        stem = os.fsencode(target.name)[:200].decode("utf-8", "ignore")
        path = target.parent / f".{stem}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        self.callback(path.unlink, missing_ok=True)
        with path.open("xb") as file:
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
            self.callback(target.unlink, missing_ok=True)
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
        files.publish(files.temp(path, data), path, replace=replace)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a new path.

    Raises:
        OSError: ENOSPC included.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy, 1 << 24)

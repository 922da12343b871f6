"""Files that appear whole or not at all.

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
from pathlib import Path
from types import TracebackType

TEMP_SUFFIX = ".rmsnorm-export.tmp"


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def link_temp(self, source: Path, target: Path) -> Path:
        """A hard link to ``source`` under a temporary name beside ``target``.

        Raises:
            OSError: the file systems differ or know no hard links.
        """
        path, descriptor = self.temp(target)
        os.close(descriptor)
        path.unlink()
        os.link(source, path)
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

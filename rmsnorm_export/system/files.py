"""Files and folders that appear whole or not at all, are copied, and refused in words.

A ``Transaction`` writes to temporary files beside their destination and renames them at the end;
whatever goes wrong, Ctrl-C included, what it made is removed.

The ``next_state`` of a folder is made in a hidden folder and takes its place by one rename. Where
the folder exists, everything in it that is not replaced is taken along (by hard links, no data is
copied), and the two folders are exchanged in one step: a reader sees the old folder or the new one.

After ``kill -9`` a hidden ``.<name>.<random>.rmsnorm-export.tmp`` may stay behind: nothing reads
it, it can be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.printable import first_line, short
from rmsnorm_export.system.reading import is_hub_store, open_regular, read_file

TEMP_SUFFIX = ".rmsnorm-export.tmp"

_AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
"""Of renameat2, see linux/fs.h."""

StrPath = str | os.PathLike[str]

MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""What reading raises where a file is none of its kind, or has something else in a place."""


def output_path(path: object) -> Path:
    """Return the path of an output.

    Raises:
        UsageError: it is no path, or holds a zero byte, or is in Hugging Face's store of blobs.
    """
    if isinstance(path, str | bytes | os.PathLike) and "\0" not in os.fsdecode(path):
        output = Path(os.fsdecode(path))
        if any(map(is_hub_store, Path(os.path.realpath(output.parent), "x").parents)):
            what = "Hugging Face's cache keeps its own files there, by their digests."
            raise UsageError(what, found=short(str(output), 300), fix="choose another folder")
        return output
    what, fix = "The output is no name of a file or folder.", "give a path, without zero bytes"
    raise UsageError(what, found=short(repr(path), 300), fix=fix)


@contextlib.contextmanager
def refusals_as(
    what: str, place: StrPath, *, fix: str, also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Say in three lines what the operating system refuses in the block, or no UTF-8.

    Args:
        what: happened then.
        place: to name where the system names no file.
        fix: what to do.
        also: further errors to be described in the same way.

    Raises:
        InputError: for an ``OSError`` or ``UnicodeError``, or one of these.
    """
    refusals: tuple[type[Exception], ...] = (OSError, UnicodeError, *also)
    try:
        yield
    except refusals as error:
        name = getattr(error, "filename", None) or place
        name = place if os.fsdecode(name).endswith(TEMP_SUFFIX) else name  # which nobody gave
        own = getattr(error, "strerror", None)
        reason = own or first_line(error, otherwise=type(error).__name__)
        found = f"{short(str(name), 300)}: {short(reason, 300)}"
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

    def temp(self, target: Path, content: Iterable[bytes] = ()) -> Path:
        """Write a temporary file beside ``target``, on disk when this returns."""
        # File names end at 255 bytes; a cut name is still recognisable.
        stem = os.fsencode(target.name)[:200].decode("utf-8", "ignore")
        path = target.parent / f".{stem}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        self.callback(path.unlink, missing_ok=True)
        with path.open("xb") as file:
            file.writelines(content)
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
            if not renameat2(temp, target, NOREPLACE):
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
                os.rename(temp, target)
            self.callback(target.unlink, missing_ok=True)
        sync(target.parent)


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
        files.publish(files.temp(path, [data]), path, replace=replace)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a new path.

    Raises:
        OSError: ENOSPC included.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy, 1 << 24)


@contextlib.contextmanager
def next_state(final: Path, replaced: set[str], hidden_in: Path | None = None) -> Iterator[Path]:
    """Provide a folder to be filled in the block, which takes the place of ``final`` at its end.

    What the existing folder holds is taken along. Until the end nothing is changed.

    Args:
        final: the folder; the one above it is made if it is missing.
        replaced: what is not taken along, added to until the end: paths relative to the folder,
            with ``/``; of a folder: all that is in it.
        hidden_in: where the next state is made; by default where a server that takes every folder
            beside ``final`` for a model sees it least.

    Raises:
        OSError: the folder cannot be put into place, or it appeared in the meantime and is not
            empty.
    """
    final = Path(os.path.realpath(final))  # an exchange would take the place of a link to it
    is_parent_new = not final.parent.exists()
    if is_parent_new:
        final.parent.mkdir()
    above = hidden_in or _unseen_folder(final.parent)
    folder = above / f".{final.name}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
    try:
        folder.mkdir()
        yield folder
        for path in folder.rglob("*"):
            sync(path)
        _keep(final, folder, replaced)
        _publish(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what failed, or the old state
        if is_parent_new:
            with contextlib.suppress(OSError):  # it is not empty
                final.parent.rmdir()


def _keep(final: Path, folder: Path, replaced: set[str]) -> None:
    """Give files second names, or copy them where there are no hard links."""
    for root, folders, files in os.walk(final):
        for name in (*folders, *files):
            source = Path(root, name)
            relative = source.relative_to(final)
            target = folder / relative
            if {one.as_posix() for one in (relative, *relative.parents)} & replaced:
                continue
            if source.is_symlink():
                target.symlink_to(os.readlink(source))
            elif source.is_dir():
                target.mkdir(exist_ok=True)
            else:
                try:
                    os.link(source, target)
                except OSError:  # what a file system without them says, or one of too many
                    copy_file(source, target)
                    shutil.copystat(source, target)
                    sync(target)


def _publish(folder: Path, final: Path) -> None:
    for root, _, _ in os.walk(folder):
        sync(Path(root))
    if not final.exists():
        os.rename(folder, final)
    elif not renameat2(folder, final, EXCHANGE):
        aside = folder.with_suffix(".old")
        os.rename(final, aside)
        try:
            os.rename(folder, final)
        except BaseException:
            os.rename(aside, final)
            raise
        os.rename(aside, folder)
    sync(final.parent)


def _unseen_folder(repository: Path) -> Path:
    """Return the folder above, where a rename can move from it; else the repository."""
    above = repository.parent
    with contextlib.suppress(OSError):
        if above.stat().st_dev == repository.stat().st_dev and os.access(above, os.W_OK | os.X_OK):
            return above
    return repository

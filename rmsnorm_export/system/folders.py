"""A folder that appears whole or not at all.

The new contents are made in a hidden folder and take their place by one rename. Where the folder
exists, everything in it that is not replaced is taken along (by hard links, no data is copied), and
the two folders are exchanged in one step: a reader sees the old folder or the new one. The hidden
folder is beside the repository where it can be, for a server takes every folder inside for a model.
After ``kill -9`` it may stay behind; nothing reads it, it can be deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from rmsnorm_export.system.files import TEMP_SUFFIX, copy_file, sync_folder

_AT_FDCWD, _NOREPLACE, _EXCHANGE = -100, 1, 2
"""Of renameat2, see linux/fs.h."""


class Stage:
    """The next state of a folder.

    Usage: ``with Stage(final) as stage``: fill ``stage.folder``, ``keep`` what is there already,
    ``publish``. Until then nothing is changed; ``undo`` takes a publication back.

    Args:
        final: the folder; the one above it is made if it is missing.
        hidden_in: where the next state is made; by default where a server that takes every folder
            beside ``final`` for a model sees it least.
    """

    def __init__(self, final: Path, hidden_in: Path | None = None) -> None:
        self.final = final
        self._hidden_in = hidden_in
        self.folder = Path()
        self._made: list[Path] = []
        self._replaced = False
        self._published = False
        self._gone: frozenset[str] = frozenset()
        self.notes: list[str] = []

    def __enter__(self) -> Stage:
        repository = self.final.parent
        if not repository.exists():
            repository.mkdir()
            self._made.append(repository)
        try:
            above = self._hidden_in or _unseen_folder(self.final.parent)
            name = f".{self.final.name}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
            self.folder = above / name
            self.folder.mkdir()
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._published and kind is None:
            self._drop_old()
            return
        if self._published:
            self.undo()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._clean()

    def _clean(self) -> None:
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def keep(self, replaced: Collection[str]) -> None:
        """Take along what the existing folder holds, but for the paths in ``replaced``.

        Args:
            replaced: paths relative to the folder, with ``/``; of a folder: all that is in it.
        """
        self._gone = frozenset(replaced)
        if not self.final.exists():
            return
        for path in _walk(self.final):
            name = path.relative_to(self.final).as_posix()
            if any(name == one or name.startswith(f"{one}/") for one in replaced):
                continue
            target = self.folder / name
            if path.is_dir() and not path.is_symlink():
                target.mkdir(exist_ok=True)
            else:
                _link(path, target)

    def publish(self) -> None:
        """Put the new folder into place.

        Raises:
            FileExistsError: the folder appeared in the meantime.
        """
        for folder in [self.folder, *(p for p in _walk(self.folder) if p.is_dir())]:
            sync_folder(folder)
        self._replaced = self.final.exists()
        if self._replaced:
            _exchange(self.folder, self.final)
        else:
            _rename_new(self.folder, self.final)
        self._published = True
        sync_folder(self.final.parent)

    def undo(self) -> None:
        """Put the old state back."""
        if self._replaced:
            _exchange(self.folder, self.final)
        else:
            os.rename(self.final, self.folder)
        self._published = False

    def _drop_old(self) -> None:
        """Delete the old folder; what was kept of it lives on in the new one.

        A file that somebody put there in the meantime is in neither: then the folder stays.
        """
        if not self._replaced:
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            self.folder.unlink()
            return
        for path in _walk(self.folder):
            name = path.relative_to(self.folder)
            ours = any(one.as_posix() in self._gone for one in (name, *name.parents))
            if not ours and not os.path.lexists(self.final / name):
                self.notes.append(f"files that appeared meanwhile are in {self.folder}")
                return
        shutil.rmtree(self.folder, ignore_errors=True)


def _unseen_folder(repository: Path) -> Path:
    """The folder above ``repository``, where a rename can move from it; else ``repository``."""
    above = repository.parent
    with contextlib.suppress(OSError):
        same = above.stat().st_dev == repository.stat().st_dev
        if same and above != repository and os.access(above, os.W_OK | os.X_OK):
            return above
    return repository


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below ``folder``, parents first; links to folders are not followed."""
    for root, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            yield Path(root, name)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy where there are no hard links."""
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP):
            raise
        copy_file(source, target)
        shutil.copystat(source, target)


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """Rename with ``flag``; False where the system cannot.

    Raises:
        OSError: the rename itself failed.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(target))


def _exchange(one: Path, other: Path) -> None:
    """Swap two folders; in one step where the file system can."""
    if _renameat2(one, other, _EXCHANGE):
        return
    aside = one.with_name(f"{one.name}.old")
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except BaseException:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


def _rename_new(source: Path, target: Path) -> None:
    """Rename a folder without taking the place of another, an empty one included."""
    if _renameat2(source, target, _NOREPLACE):
        return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
    os.rename(source, target)

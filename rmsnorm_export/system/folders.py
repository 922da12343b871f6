"""A folder that appears whole or not at all.

The new contents are made in a hidden folder and take their place by one rename. Where the folder
exists, everything in it that is not replaced is taken along (by hard links, no data is copied), and
the two folders are exchanged in one step: a reader sees the old folder or the new one. The hidden
folder is beside the repository where it can be, for a server takes every folder inside for a model.
After ``kill -9`` it may stay behind; nothing reads it, it can be deleted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from rmsnorm_export.system.files import EXCHANGE, TEMP_SUFFIX, copy_file, renameat2, sync


class Stage:
    """The next state of a folder.

    Usage: ``with Stage(final) as stage``: fill ``stage.folder``, ``keep`` what is there already,
    and ``publish`` as the last step. Until then nothing is changed.

    Args:
        final: the folder; the one above it is made if it is missing.
        hidden_in: where the next state is made; by default where a server that takes every folder
            beside ``final`` for a model sees it least.
    """

    def __init__(self, final: Path, hidden_in: Path | None = None) -> None:
        self.final = final
        self._new_parent = not final.parent.exists()
        self._hidden_in = hidden_in
        self._published = False
        self.folder = Path()

    def __enter__(self) -> Stage:
        if self._new_parent:
            self.final.parent.mkdir()
        above = self._hidden_in or _unseen_folder(self.final.parent)
        self.folder = above / f".{self.final.name}.{secrets.token_hex(4)}{TEMP_SUFFIX}"
        self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_old()
        if self._new_parent and not self._published:
            with contextlib.suppress(OSError):
                self.final.parent.rmdir()

    def _drop_old(self) -> None:
        """Delete the hidden folder: what failed, or the old state after an exchange."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep(self, replaced: Collection[str]) -> None:
        """Take along what the existing folder holds, but for the paths in ``replaced``.

        Args:
            replaced: paths relative to the folder, with ``/``; of a folder: all that is in it.
        """
        for root, folders, files in os.walk(self.final):
            for name in (*folders, *files):
                path = Path(root, name)
                relative = path.relative_to(self.final)
                if not {one.as_posix() for one in (relative, *relative.parents)} & set(replaced):
                    _link(path, self.folder / relative)

    def publish(self) -> None:
        """Put the new folder into place.

        Raises:
            OSError: it cannot be, or the folder appeared in the meantime and is not empty.
        """
        for root, _, _ in os.walk(self.folder):
            sync(Path(root))
        if not self.final.exists():
            os.rename(self.folder, self.final)
        elif not renameat2(self.folder, self.final, EXCHANGE):
            aside = self.folder.with_suffix(".old")
            os.rename(self.final, aside)
            try:
                os.rename(self.folder, self.final)
            except BaseException:
                os.rename(aside, self.final)
                raise
            os.rename(aside, self.folder)
        self._published = True
        sync(self.final.parent)


def _unseen_folder(repository: Path) -> Path:
    """Return the folder above, where a rename can move from it; else the repository."""
    above = repository.parent
    with contextlib.suppress(OSError):
        if above.stat().st_dev == repository.stat().st_dev and os.access(above, os.W_OK | os.X_OK):
            return above
    return repository


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where there are no hard links."""
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        try:
            os.link(source, target)
        except PermissionError:  # what a file system without them says
            copy_file(source, target)
            shutil.copystat(source, target)

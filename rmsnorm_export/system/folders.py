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
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.system.files import EXCHANGE, TEMP_SUFFIX, copy_file, renameat2, sync


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
                except PermissionError:  # what a file system without them says
                    copy_file(source, target)
                    shutil.copystat(source, target)


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

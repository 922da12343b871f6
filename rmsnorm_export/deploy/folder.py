"""The folder of a pipeline: whose it is, and who works in it.

    FOLDER/pipeline.json      whose it is
    FOLDER/.lock              held while somebody works in it; the system lets go of a dead one's
    FOLDER/STEP/...           outputs of a step, and its stamp
    FOLDER/deploy.json        the last run

A step appears whole or not at all: it is made in a hidden folder that takes the place of the old
one in a single rename. What a killed run leaves of these is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.records import document
from rmsnorm_export.system.files import TEMP_SUFFIX, refusals_as, write_whole
from rmsnorm_export.system.reading import read_file, read_json

SUMMARY, OWNER, LOCK = "deploy.json", "pipeline.json", ".lock"


def check_folder(folder: Path, name: str) -> None:
    """Refuse a folder that cannot be the pipeline's; nothing is made or changed.

    Raises:
        UsageError: it belongs to another pipeline, or holds files of other origin.
        InputError: it is no folder, or cannot be read.
    """
    others, owner = [], ""
    if os.path.lexists(folder):
        with writing(folder):
            others = [path.name for path in folder.iterdir() if not _passing(path.name)]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        owner = str(read_json(folder / OWNER)["name"])
    if others and owner != name:
        whose = f"it is of {quoted(owner)}" if owner else f"it holds {short(min(others))}"
        what = "The folder belongs to another pipeline, or holds files that no pipeline made."
        fix = "give another [pipeline] folder, or an empty one"
        raise UsageError(what, found=f"{short(str(folder), 300)}: {whose}", fix=fix)


def _passing(name: str) -> bool:
    """Tell whether a file holds no state."""
    return name == LOCK or (name.startswith(".") and TEMP_SUFFIX in name)


@contextlib.contextmanager
def working_in(folder: Path, name: str) -> Iterator[None]:
    """Hold the folder while the block runs; it is made where it is missing.

    Raises:
        UsageError: another run holds it.
        InputError: it cannot be made or written.
    """
    lock = folder / LOCK
    with contextlib.ExitStack() as held:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(FileLock(lock, timeout=0))
            except Timeout as error:
                what = "Another run works in the folder of the pipeline."
                holder = short(read_file(lock).decode("utf-8", "replace").strip()) or "a process"
                found = f"{short(str(folder), 300)} is held by {holder}"
                raise UsageError(what, found=found, fix="wait for its end, or end it") from error
            lock.write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
            for path in folder.iterdir():  # nobody else works here, so nobody needs it
                if path.name != LOCK and _passing(path.name):
                    folders = path.is_dir() and not path.is_symlink()
                    shutil.rmtree(path) if folders else path.unlink()
            if not (folder / OWNER).exists():
                write_whole(folder / OWNER, document("pipeline", {"name": name}))
        yield


def writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn what the operating system refuses in a block into an ``InputError``."""
    what = "The folder of the pipeline cannot be made or used."
    fix = "check the path, its permissions and space, or give another [pipeline] folder"
    return refusals_as(what, folder, fix=fix)

"""The folder of a pipeline: whose it is, who works in it, and how steps appear in it.

    FOLDER/pipeline.json      whose it is
    FOLDER/.lock              held while somebody works in it; the system lets go of a dead one's
    FOLDER/STEP/...           outputs of a step, and step.json, which is written last
    FOLDER/deploy.json        the last run

A step appears whole or not at all: it is made in a hidden folder, ``.STEP.<random>.``
``rmsnorm-export.tmp``, that takes the place of the old one in a single rename. What a killed run
leaves of these is removed by the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.pipeline.result import StepRecord
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.records import document, from_json, to_json
from rmsnorm_export.system.files import TEMP_SUFFIX, locked, refusals_as, write_whole
from rmsnorm_export.system.reading import read_file, read_json

RECORD, SUMMARY, OWNER, LOCK = "step.json", "deploy.json", "pipeline.json", ".lock"


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """What stands in ``pipeline.json``: the pipeline that the folder belongs to.

    Attributes:
        name: of the pipeline.
        file: the pipeline file, relative to the folder.
    """

    name: str
    file: str


def check_folder(folder: Path, name: str, file: Path) -> bool:
    """Whether ``folder`` is there already; nothing is made or changed.

    Raises:
        UsageError: it belongs to another pipeline, or holds files of other origin.
        InputError: it is no folder, or cannot be read or made.
    """
    shown = short(str(folder), 300)
    with named_errors(folder):
        if not os.path.lexists(folder):
            above = next(parent for parent in folder.parents if os.path.lexists(parent))
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                raise InputError(
                    "The folder of the pipeline cannot be made.",
                    found=f"{short(str(above), 300)} is no folder that files can be made in",
                    fix="check the path and its permissions, or give another [pipeline] folder",
                )
            return False
        if not folder.is_dir():
            raise InputError(
                "The place of the pipeline's folder is taken.",
                found=f"{shown} is no folder",
                fix="give another [pipeline] folder, or move it away",
            )
        others = sorted(p.name for p in folder.iterdir() if not _passing(p.name))
        if OWNER not in others:
            if others:
                raise UsageError(
                    "The folder of the pipeline holds files that no pipeline made.",
                    found=f"{shown} has no {OWNER}, but {short(others[0])}",
                    fix="give another [pipeline] folder, or an empty one",
                )
            return True
        owner = _owner(folder)
    there = os.path.abspath(folder / owner.file)
    moved = not os.path.exists(there)
    if owner.name != name or not (moved or os.path.samefile(there, file)):
        raise UsageError(
            "The folder belongs to another pipeline.",
            found=f"{shown} is of {short(owner.name)!r}, {short(there, 300)}",
            fix="give another [pipeline] folder, or delete this one",
        )
    return True


def _passing(name: str) -> bool:
    """A file that no state is in."""
    return name == LOCK or (name.startswith(".") and TEMP_SUFFIX in name)


def _owner(folder: Path) -> Owner:
    try:
        return from_json(read_file(folder / OWNER), Owner)
    except InputError as error:
        raise InputError(
            "The folder does not say which pipeline it belongs to.",
            found=f"{short(str(folder / OWNER), 300)}: {one_line(str(error), 200)}",
            fix="delete the folder, or give another [pipeline] folder",
        ) from error


@contextlib.contextmanager
def working_in(folder: Path, name: str, file: Path) -> Iterator[None]:
    """Hold the folder while the block runs; it is made where it is missing.

    Raises:
        UsageError: another run holds it.
        InputError: it cannot be made or written.
    """
    with contextlib.ExitStack() as held:
        with named_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(locked(folder / LOCK, wait=False))
            except BlockingIOError as error:
                holder = read_file(folder / LOCK).decode("utf-8", "replace")[:100].strip()
                raise UsageError(
                    "Another run works in the folder of the pipeline.",
                    found=f"{short(str(folder), 300)} is held by {short(holder) or 'a process'}",
                    fix="wait for its end, or end it",
                ) from error
            (folder / LOCK).write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
            _remove_remains(folder)
            owner = Owner(name, os.path.relpath(file, folder))
            if not (folder / OWNER).exists() or _owner(folder) != owner:
                write_whole(folder / OWNER, to_json(owner))
        yield


def _remove_remains(folder: Path) -> None:
    """What a killed run left: nobody else works here, so nobody needs it."""
    for path in folder.iterdir():
        if path.name != LOCK and _passing(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def read_record(folder: Path) -> StepRecord | None:
    """The record of the step in ``folder``; None when there is none that can be read."""
    try:
        return from_json(read_file(folder / RECORD), StepRecord)
    except (OSError, ValueError, InputError):
        return None


def read_claim(path: Path) -> dict[str, str]:
    """A small JSON object of strings; empty where there is none."""
    try:
        body = read_json(path)
    except (OSError, ValueError):
        return {}
    good = isinstance(body, dict)
    return {key: value for key, value in body.items() if isinstance(value, str)} if good else {}


def write_claim(path: Path, claim: dict[str, str]) -> None:
    """What ``read_claim`` reads."""
    write_whole(path, document("claim", claim))


def named_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """What the operating system refuses in a block, as an ``InputError``."""
    return refusals_as(
        "The folder of the pipeline cannot be written.",
        folder,
        fix="check the folder and its permissions",
        fix_full="free some space and run the command again: finished steps are kept",
    )

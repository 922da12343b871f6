"""The making of a report: versions, and the SHA-256 of the files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.reading import sha256_of


@dataclasses.dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when a report was made; its path is ``-`` for what was piped in."""

    path: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """The key ``provenance`` of a report; files with external data, the date in UTC."""

    versions: dict[str, str]
    date: str
    command: str
    inputs: tuple[FileState, ...]
    outputs: tuple[FileState, ...]


def utc_now() -> str:
    """Return the time in UTC, or that of ``SOURCE_DATE_EPOCH`` (see reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = time.gmtime(int(epoch) if epoch.isdecimal() else time.time())
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", now)


def provenance(inputs: Iterable[FileState], outputs: Iterable[Path], command: str) -> Provenance:
    """Return what there is to say of a report that is made now, of these files."""
    versions = versions_of() | {"python": platform.python_version()}
    return Provenance(versions, utc_now(), command, tuple(inputs), file_states(outputs))


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return files as they are, by absolute paths; those that cannot be read are omitted."""
    states = []
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError, ValueError):
            states.append(FileState(os.path.abspath(path), path.stat().st_size, sha256_of(path)))
    return tuple(states)


def piped_in(data: bytes) -> FileState:
    """Return the state of a model that was read from standard input."""
    return FileState("-", len(data), hashlib.sha256(data).hexdigest())

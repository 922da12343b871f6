"""The making of a report: versions, and the SHA-256 of the files."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.reading import sha256_of

STDIN = "-"
"""The path of a model that was piped in."""

_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")
_LOADED = ("torch", "transformers", "tensorrt", "tensorrt_rtx")
"""Packages that are named where they were used."""


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


def utc_now() -> datetime.datetime:
    """Return the time in UTC, or that of ``SOURCE_DATE_EPOCH`` (see reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return datetime.datetime.now(datetime.timezone.utc)


def provenance(inputs: Iterable[FileState], outputs: Iterable[Path], command: str) -> Provenance:
    """Return what there is to say of a report that is made now, of these files."""
    names = (*_PACKAGES, *(name for name in _LOADED if name in sys.modules))
    versions = versions_of(names) | {"python": platform.python_version()}
    date = utc_now().isoformat(timespec="seconds")
    return Provenance(versions, date, command, tuple(inputs), file_states(outputs))


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return files as they are, by absolute paths; those that cannot be read are omitted."""
    states = []
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError, ValueError):
            state = FileState(os.path.abspath(path), path.stat().st_size, sha256_of(path))
            states.append(state)
    return tuple(states)


def piped_in(data: bytes) -> FileState:
    """Return the state of a model that was read from standard input."""
    return FileState(STDIN, len(data), hashlib.sha256(data).hexdigest())

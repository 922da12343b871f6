"""What a report says of its making, so that it can be audited."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import version_of, versions_of

STDIN = "-"
"""The path of a model that was piped in."""

_PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")
_LOADED = ("torch", "transformers", "tensorrt", "tensorrt_rtx")
"""Packages that are named where they were used."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when a report was made.

    Attributes:
        path: relative to the folder of the report, or absolute where it is elsewhere altogether;
            ``-`` for what was piped in.
        bytes: its size.
        sha256: of its contents, in hexadecimal.
    """

    path: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """The key ``provenance`` of a report.

    Attributes:
        tool: this package and its version.
        versions: of the packages that it worked with.
        python: version of the interpreter.
        platform: operating system and machine.
        date: UTC, ISO 8601; that of ``SOURCE_DATE_EPOCH`` where it is set.
        command: the command line.
        inputs: the files that were read, external data included.
        outputs: the files that were written.
    """

    tool: str
    versions: dict[str, str]
    python: str
    platform: str
    date: str
    command: str
    inputs: tuple[FileState, ...]
    outputs: tuple[FileState, ...]

    def seen_from(self, folder: StrPath) -> Provenance:
        """Return the same for a report in ``folder``; paths in the working folder are relative."""
        base, top = Path(os.path.abspath(folder)), Path.cwd()
        top = top if base.is_relative_to(top) else base

        def seen(states: tuple[FileState, ...]) -> tuple[FileState, ...]:
            return tuple(
                dataclasses.replace(state, path=Path(os.path.relpath(state.path, base)).as_posix())
                if Path(state.path).is_relative_to(top)
                else state
                for state in states
            )

        return dataclasses.replace(self, inputs=seen(self.inputs), outputs=seen(self.outputs))


def utc_now() -> datetime.datetime:
    """The time in UTC, or that of ``SOURCE_DATE_EPOCH`` (see reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return datetime.datetime.now(datetime.timezone.utc)


def provenance(inputs: Iterable[FileState], outputs: Iterable[Path], command: str) -> Provenance:
    """Return what there is to say of a report that is made now, of these files."""
    return Provenance(
        tool=f"rmsnorm-export {version_of('rmsnorm-export')}".rstrip(),
        versions=versions_of((*_PACKAGES, *(name for name in _LOADED if name in sys.modules))),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        date=utc_now().isoformat(timespec="seconds"),
        command=command,
        inputs=tuple(inputs),
        outputs=file_states(outputs),
    )


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return files as they are, by absolute paths; those that cannot be read are omitted."""

    def state(path: Path) -> FileState | None:
        with contextlib.suppress(OSError, ValueError):
            return FileState(os.path.abspath(path), path.stat().st_size, sha256_of(path))
        return None

    # A digest leaves the interpreter free, so that large files are read side by side.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return tuple(filter(None, pool.map(state, dict.fromkeys(paths))))


def piped_in(data: bytes) -> FileState:
    """A model that was read from standard input."""
    return FileState(STDIN, len(data), hashlib.sha256(data).hexdigest())

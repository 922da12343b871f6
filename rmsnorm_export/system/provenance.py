"""What a report says of its making, so that it can be audited."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import version_of, versions_of

COMMAND: contextvars.ContextVar[str] = contextvars.ContextVar("command", default="Python API")
"""The command line that runs, for the reports that are written meanwhile."""

STDIN = "-"
"""The path of a model that was piped in."""

_PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")
_LOADED = ("torch", "transformers", "tensorrt", "tensorrt_rtx")
"""Packages that are named where they were used."""

_A = TypeVar("_A")
_B = TypeVar("_B")


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
        command: the command line, or ``Python API``.
        inputs: the files that were read, external data included.
        outputs: the files that were written.
        elsewhere: of a report that goes with copies of some of its files: the others, by name. They
            are not looked for.
    """

    tool: str
    versions: dict[str, str]
    python: str
    platform: str
    date: str
    command: str
    inputs: tuple[FileState, ...]
    outputs: tuple[FileState, ...]
    elsewhere: tuple[FileState, ...] = ()

    def seen_from(self, folder: StrPath, root: StrPath = "") -> Provenance:
        """The same for a report in ``folder``: what is below ``root``, too, has a relative path.

        Args:
            folder: of the report.
            root: a folder that may be moved with all that is in it; "": the working folder.
        """
        base = Path(os.path.abspath(folder))
        top = Path(os.path.abspath(root))
        top = top if base.is_relative_to(top) else base

        def seen(states: tuple[FileState, ...]) -> tuple[FileState, ...]:
            return tuple(
                dataclasses.replace(state, path=Path(os.path.relpath(state.path, base)).as_posix())
                if Path(state.path).is_relative_to(top)
                else state
                for state in states
            )

        return dataclasses.replace(self, inputs=seen(self.inputs), outputs=seen(self.outputs))

    def with_copies(self, copies: Mapping[str, str]) -> Provenance:
        """The same for a copy of the report that goes with copies of some of its files.

        Args:
            copies: SHA-256 of a file -> the path of its copy from the report's.
        """

        def at_the_copy(states: tuple[FileState, ...]) -> tuple[FileState, ...]:
            return tuple(
                dataclasses.replace(state, path=copies[state.sha256])
                for state in states
                if state.sha256 in copies
            )

        return dataclasses.replace(
            self,
            inputs=at_the_copy(self.inputs),
            outputs=at_the_copy(self.outputs),
            elsewhere=tuple(
                dataclasses.replace(state, path=PurePosixPath(state.path).name)
                for state in (*self.inputs, *self.outputs, *self.elsewhere)
                if state.sha256 not in copies
            ),
        )


def utc_now() -> datetime.datetime:
    """The time in UTC, or that of ``SOURCE_DATE_EPOCH`` (see reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return datetime.datetime.now(datetime.timezone.utc)


def provenance(
    inputs: Iterable[Path | FileState],
    outputs: Iterable[Path | FileState],
    sha256: Callable[[Path], str] = sha256_of,
) -> Provenance:
    """What there is to say of a report that is made now; paths are absolute.

    Args:
        inputs, outputs: files that were read and written; those that cannot be read are left out.
        sha256: of a file; each is asked for once.
    """
    digests: dict[tuple[int, int], Future[str]] = {}

    def begin(file: Path | FileState) -> Callable[[], FileState]:
        if isinstance(file, FileState):
            return lambda: file
        info = file.stat()
        key = info.st_dev, info.st_ino
        if key not in digests:
            digests[key] = pool.submit(sha256, file)
        return lambda: FileState(os.path.abspath(file), info.st_size, digests[key].result())

    # A digest leaves the interpreter free, so that large files are read side by side.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        begun = [[*_done(begin, dict.fromkeys(files))] for files in (inputs, outputs)]
    read, written = (tuple(_done(lambda state: state(), states)) for states in begun)
    return Provenance(
        tool=f"rmsnorm-export {version_of('rmsnorm-export')}".rstrip(),
        versions=versions_of((*_PACKAGES, *(name for name in _LOADED if name in sys.modules))),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        date=utc_now().isoformat(timespec="seconds"),
        command=COMMAND.get(),
        inputs=read,
        outputs=written,
    )


def _done(step: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
    """A step of each file, but for those that cannot be read."""
    for item in items:
        with contextlib.suppress(OSError, ValueError):
            yield step(item)


def piped_in(data: bytes) -> FileState:
    """A model that was read from standard input."""
    return FileState(STDIN, len(data), hashlib.sha256(data).hexdigest())

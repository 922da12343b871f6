"""What a report says of its making, so that it can be audited; and whether its files are still so.

import rmsnorm_export as rx
rx.check_report("fused.json").require()
"""

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
from typing import Any, Literal, TypeVar

from rmsnorm_export.errors import InputError, VerificationError
from rmsnorm_export.printable import one_line, plural, short
from rmsnorm_export.records import Unfit, decode
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import version_of, versions_of
from rmsnorm_export.system.reading import read_text
from rmsnorm_export.system.shown import Shown

COMMAND: contextvars.ContextVar[str] = contextvars.ContextVar("command", default="Python API")
"""The command line that runs, for the reports that are written meanwhile."""

STDIN = "-"
"""The path of a model that was piped in."""

_PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")
_LOADED = ("torch", "transformers", "tensorrt", "tensorrt_rtx")
"""Packages that are named where they were used."""

_A = TypeVar("_A")
_B = TypeVar("_B")
Role = Literal["input", "output"]
FileVerdict = Literal["same", "changed", "missing"]


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


@dataclasses.dataclass(frozen=True, slots=True)
class FileCheck:
    """What became of a file of a report.

    Attributes:
        role: whether the report was made from it, or it was made with the report.
        path: as the report has it.
        verdict: ``same``; ``changed``: it has other contents; ``missing``: it is not there, or
            cannot be read.
        found: what there is instead; "" for the same.
    """

    role: Role
    path: str
    verdict: FileVerdict
    found: str = ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ReportCheck(Shown):
    """Outcome of ``check_report``.

    Attributes:
        path: of the report.
        report: its kind, e.g. ``verification``.
        made: what it says of its making.
        files: every file that it names; what was piped in is not among them.
    """

    path: Path
    report: str
    made: Provenance
    files: tuple[FileCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether there are files, and every one is what it was."""
        return bool(self.files) and all(file.verdict == "same" for file in self.files)

    @property
    def error(self) -> VerificationError | None:
        """What is wrong; None where nothing is."""
        if self.passed:
            return None
        bad = [file for file in self.files if file.verdict != "same"]
        if not bad:
            fix = "make the report from files, not from models in memory or on stdin"
            if self.made.elsewhere:
                fix = "check the report that this one is a copy of, beside whose copy no file lies"
            return VerificationError(
                "The report names no file that could be compared.",
                found=f"{short(str(self.path), 300)}, made by {self.made.command}",
                fix=fix,
            )
        return VerificationError(
            f"{plural(len(bad), 'file')} of {len(self.files)} are not those of the report.",
            found="; ".join(f"{short(file.path, 300)} {file.found}" for file in bad[:5]),
            fix="bring the files back that the report was made for, or make it again",
        )

    def require(self) -> None:
        """Go on only when the files are those of the report.

        Raises:
            VerificationError: one is changed or missing, or the report names none.
        """
        if self.error is not None:
            raise self.error


def check_report(path: StrPath) -> ReportCheck:
    """Whether the files that a JSON report names are still those that it was made for.

    Args:
        path: of a report that ``--report``, ``--format json`` or ``deploy`` wrote. Relative paths
            in it are looked for in its folder first, then in the working folder.

    Raises:
        InputError: it cannot be read, or does not say what files it is about.
    """
    file = Path(path)
    fix = "give a JSON report that --report or --format json wrote, or the deploy.json of a run"
    text = read_text(file, "The report cannot be read.", fix=fix)
    try:
        body: Any = parse_json(text)
        made: Provenance = decode(body["provenance"], Provenance)
        kind = str(body["kind"])
    except (ValueError, TypeError, KeyError, Unfit) as error:
        reason = error.found_at("provenance") if isinstance(error, Unfit) else str(error)
        if isinstance(error, TypeError | KeyError):
            reason = "it has no provenance"
        raise InputError(
            "The file does not say which files it reports on.",
            found=f"{short(str(file), 300)}: {one_line(reason, 300)}",
            fix=fix,
        ) from error
    known: tuple[tuple[Role, tuple[FileState, ...]], ...]
    known = (("input", made.inputs), ("output", made.outputs))
    checks = (
        _checked(role, state, file.parent)
        for role, states in known
        for state in states
        if state.path != STDIN
    )
    return ReportCheck(file, kind, made, tuple(checks))


def _checked(role: Role, state: FileState, folder: Path) -> FileCheck:
    """One file as it is now; its contents are read."""
    try:
        place = next((p for p in (folder / state.path, Path(state.path)) if p.exists()), None)
        if place is None:
            return FileCheck(role, state.path, "missing", "is not there")
        if not place.is_file():  # a pipe would be waited for without end
            return FileCheck(role, state.path, "changed", "is no plain file")
        size = place.stat().st_size
        if size != state.bytes:
            found = f"has {size:,} bytes, not {state.bytes:,}"
            return FileCheck(role, state.path, "changed", found)
        if sha256_of(place) != state.sha256:
            return FileCheck(role, state.path, "changed", "has other contents")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return FileCheck(role, state.path, "missing", f"cannot be read: {one_line(reason, 200)}")
    return FileCheck(role, state.path, "same")

"""The record of a step, ``step.json``, whether it still holds, and the outcome of a run."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from rmsnorm_export.deploy.settings import StepName
from rmsnorm_export.errors import Error, Failure, InputError
from rmsnorm_export.graph.load import model_files
from rmsnorm_export.printable import short
from rmsnorm_export.records import from_json
from rmsnorm_export.system.reading import read_file, sha256_of
from rmsnorm_export.system.shown import Shown

RECORD = "step.json"
HASHED_BYTES = 1 << 30
"""Files of more are identified by their size and time."""

State = Literal["done", "skipped", "failed", "not run", "would run", "may run"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of one step; that of the run that made its folder is in ``FOLDER/STEP/step.json``.

    Attributes:
        name: of the step.
        state: ``done``: it ran; ``skipped``: an earlier run made the same; ``failed``; ``not run``:
            an earlier step failed, or the run ended before; of a dry run ``would run``, or ``may
            run``: that depends on what the steps before it make.
        why: the reason of ``state``.
        seconds: that it took in this run.
        inputs: everything that its result depends on: options, files, packages; name to value.
        outputs: files that it made, relative to its folder.
        summary: what came out, one line.
        notes: what else a reader may want to know.
        failure: why it failed; None when it did not. A failed step runs again.
    """

    name: StepName
    state: State
    why: str = ""
    seconds: float = 0.0
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    summary: str = ""
    notes: tuple[str, ...] = ()
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Deployment(Shown):
    """Outcome of ``run_pipeline``; as JSON it is in ``FOLDER/deploy.json``.

    Attributes:
        name: of the pipeline.
        path: of the pipeline file.
        folder: where everything was written.
        dry_run: nothing was run.
        steps: in their order, those that the file has.
        date: of the run, UTC, ISO 8601.
        seconds: that it took.
        exit_code: that of the failed step, else 0.
    """

    name: str
    path: Path
    folder: Path
    dry_run: bool
    steps: tuple[StepOutcome, ...]
    date: str
    seconds: float
    exit_code: int

    def step(self, name: str) -> StepOutcome:
        """Return the step of this name; ``KeyError`` when the pipeline has none."""
        return {str(outcome.name): outcome for outcome in self.steps}[name]

    @property
    def error(self) -> Error | None:
        """The error of the step that failed, with its exit code; None when none did."""
        failures = (one.failure.error(f"Step {one.name}: ") for one in self.steps if one.failure)
        return next(failures, None)


def read_record(folder: Path) -> StepOutcome | None:
    """Return the record of the step in ``folder``; None when there is none that can be read."""
    try:
        return from_json(read_file(folder / RECORD), StepOutcome)
    except (OSError, ValueError, InputError):
        return None


def out_of_date(folder: Path, inputs: Mapping[str, str]) -> str:
    """Return why a step must run; "" when it need not.

    Args:
        folder: of the step.
        inputs: what its result depends on now.
    """
    record = read_record(folder)
    if record is None or record.failure is not None:
        return "it failed the last time" if record is not None else "it has not run yet"
    for name in {**inputs, **record.inputs}:
        old, new = (short(one.get(name, "nothing"), 60) for one in (record.inputs, inputs))
        if old != new:
            kind, _, rest = name.partition(" ")
            return f"{rest} was changed" if kind == "file" else f"{rest}: {old} became {new}"
    lost = next((name for name in record.outputs if not (folder / name).exists()), None)
    return "" if lost is None else f"the output {lost} is gone"


def identity_of(path: Path) -> str:
    """Return what identifies the contents of a file; "" when it cannot be read."""
    try:
        info = path.stat()
        if info.st_size > HASHED_BYTES:
            return f"{info.st_size} bytes, {info.st_mtime_ns} ns"
        return _hashed(path, info.st_ino, info.st_size, info.st_mtime_ns)
    except OSError:
        return ""


@functools.lru_cache(10_000)
def _hashed(path: Path, *_: int) -> str:
    """Read a file once, as long as it stays as it is."""
    return sha256_of(path)


def identities(paths: Iterable[Path], base: Path) -> dict[str, str]:
    """Return what identifies files, by their path relative to ``base``, with ``/``."""
    return {Path(os.path.relpath(path, base)).as_posix(): identity_of(path) for path in paths}


def files_of(path: Path) -> Iterator[Path]:
    """Yield the files that a path stands for: external data, all in a folder but what is hidden.

    Raises:
        InputError: it is an ONNX file that cannot be read.
    """
    if path.suffix.lower() == ".onnx" and path.is_file():
        yield from model_files(path)
    elif not path.is_dir():
        yield path
    for root, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in sorted(files) if not name.startswith("."))

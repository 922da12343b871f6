"""The outcome of a run, and of each of its steps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rmsnorm_export.deploy.settings import StepName
from rmsnorm_export.errors import Error, Failure
from rmsnorm_export.graph.load import model_files
from rmsnorm_export.system.shown import Shown

State = Literal["done", "failed", "not run"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of one step.

    Attributes:
        name: of the step.
        state: ``done``; ``failed``; ``not run``: an earlier step failed, or the run ended before.
        seconds: that it took.
        outputs: files that it made, relative to its folder.
        summary: what came out, one line.
        notes: what else a reader may want to know.
        failure: why it failed; None when it did not.
    """

    name: StepName
    state: State
    seconds: float = 0.0
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
        steps: in their order, those that the file has.
        date: of the run, UTC, ISO 8601.
        seconds: that it took.
        exit_code: that of the failed step, else 0.
    """

    name: str
    path: Path
    folder: Path
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

"""Outcome of a run of a pipeline: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rmsnorm_export.deploy.stamp import Stamp
from rmsnorm_export.deploy.tables import StepName
from rmsnorm_export.errors import Error, Failure
from rmsnorm_export.system.shown import Shown

State = Literal["done", "skipped", "failed", "not run", "would run", "may run"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of one step in one run.

    Attributes:
        name: of the step.
        state: ``done``: it ran; ``skipped``: an earlier run made the same; ``failed``; ``not run``:
            an earlier step failed, or the run ended before; of a dry run ``would run``, or ``may
            run``: that depends on what the steps before it make.
        why: the reason of ``state``.
        seconds: that it took in this run.
        folder: where its outputs are.
        stamp: what came out, and of what; None when nothing did.
        failure: why it failed.
    """

    name: StepName
    state: State
    why: str
    seconds: float
    folder: Path
    stamp: Stamp | None
    failure: Failure | None

    @property
    def summary(self) -> str:
        """The result, one line."""
        return "" if self.stamp is None else self.stamp.summary


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

    @property
    def passed(self) -> bool:
        """No step failed."""
        return self.exit_code == 0

    def step(self, name: str) -> StepOutcome:
        """Return the step of this name; ``KeyError`` when the pipeline has none."""
        return {str(outcome.name): outcome for outcome in self.steps}[name]

    @property
    def failed(self) -> StepOutcome | None:
        """The step that failed; None when none did."""
        return next((outcome for outcome in self.steps if outcome.failure is not None), None)

    @property
    def error(self) -> Error | None:
        """The error of the failed step, of the class that belongs to its exit code."""
        failures = (one.failure.error(f"Step {one.name}: ") for one in self.steps if one.failure)
        return next(failures, None)

    def require(self) -> None:
        """Raise the error of the failed step, where one failed."""
        if self.error is not None:
            raise self.error

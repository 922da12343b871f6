"""What a run of a pipeline did: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.errors import Error, Failure
from rmsnorm_export.pipeline.tables import StepName
from rmsnorm_export.system.provenance import Provenance
from rmsnorm_export.system.shown import Shown

State = Literal["done", "skipped", "failed", "not run"]
Plan = Literal["run", "skip", "maybe"]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a step made.

    Attributes:
        path: relative to the folder of the step, with ``/``.
        bytes: its size.
        sha256: of its content; "" for a file of more than 1 MiB when those of the step are larger
            than 1 GiB together: then size and time stand for it.
        modified_ns: its time of modification, in nanoseconds since 1970.
    """

    path: str
    bytes: int
    sha256: str
    modified_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecord:
    """What stands in ``STEP/step.json``: the step ran, and what of.

    Attributes:
        step: its name.
        inputs: everything that its result depends on: options, files, packages, outputs of earlier
            steps; name to value.
        reads: files that it was seen to read beyond those, by their path relative to the pipeline
            file, and their sha256.
        outputs: files that it made.
        summary: what came out, one line.
        facts: what came out, for the summary and for later steps.
        failure: why it failed; None when it did not. A failed step runs again.
        made: when, UTC, ISO 8601.
        seconds: that it took.
    """

    step: StepName
    inputs: dict[str, str]
    reads: dict[str, str]
    outputs: tuple[OutputFile, ...]
    summary: str
    facts: dict[str, Any]
    failure: Failure | None
    made: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step in one run.

    Attributes:
        name: of the step.
        state: ``done``: it ran; ``skipped``: an earlier run made the same; ``failed``; ``not run``:
            an earlier step failed, or the run ended before, or nothing was to be run.
        plan: what was to become of it before the run: ``run``, ``skip``, or ``maybe``: that
            depends on what the steps before it make.
        why: the reason of ``plan``, or of ``not run``.
        seconds: that it took in this run.
        summary: what came out, one line; "" when nothing did.
        folder: where its outputs are.
        outputs: paths of its files, relative to ``folder``.
        facts: what came out.
        failure: why it failed.
    """

    name: StepName
    state: State
    plan: Plan
    why: str
    seconds: float
    summary: str
    folder: Path
    outputs: tuple[str, ...] = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Deployment(Shown):
    """Outcome of ``run_pipeline``; as JSON it stands in ``FOLDER/deploy.json``.

    Attributes:
        name: of the pipeline.
        path: of the pipeline file.
        folder: where everything was written.
        passed: no step failed.
        exit_code: that of the first failed step, else 0.
        dry_run: nothing was run.
        steps: in their order, those that the file has.
        tool: name and version of this package.
        date: of the run, UTC, ISO 8601.
        seconds: that it took.
        provenance: what it was made with and from, and every file of its steps with its hash, the
            reports among them; None for a dry run.
    """

    name: str
    path: Path
    folder: Path
    passed: bool
    exit_code: int
    dry_run: bool
    steps: tuple[StepOutcome, ...]
    tool: str
    date: str
    seconds: float
    provenance: Provenance | None = None

    def step(self, name: str) -> StepOutcome:
        """The step of this name.

        Raises:
            KeyError: the pipeline has none.
        """
        for outcome in self.steps:
            if outcome.name == name:
                return outcome
        raise KeyError(name)

    @property
    def failed(self) -> StepOutcome | None:
        """The step that failed; None when none did."""
        return next((outcome for outcome in self.steps if outcome.failure is not None), None)

    @property
    def error(self) -> Error | None:
        """That of the failed step, of the class that its exit code belongs to."""
        if self.failed is None or self.failed.failure is None:
            return None
        return self.failed.failure.error(f"Step {self.failed.name}: ")

    def require(self) -> None:
        """Go on only when no step failed.

        Raises:
            Error: that of the failed step, of the class that its exit code belongs to.
        """
        if self.error is not None:
            raise self.error

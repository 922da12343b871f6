"""``run_pipeline``: every step that is not up to date, in order, until one fails."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path

from rmsnorm_export.errors import Error, UsageError
from rmsnorm_export.pipeline.identity import outputs_of as identities
from rmsnorm_export.pipeline.place import (
    RECORD,
    SUMMARY,
    as_step_error,
    check_folder,
    named_errors,
    read_record,
    working_in,
)
from rmsnorm_export.pipeline.plan import Planned, plan_steps, state_of
from rmsnorm_export.pipeline.read import read_document
from rmsnorm_export.pipeline.result import (
    Deployment,
    StepFailure,
    StepOutcome,
    StepRecord,
    failure_of,
)
from rmsnorm_export.pipeline.settings import Settings, settle
from rmsnorm_export.pipeline.steps.base import Made, files_in
from rmsnorm_export.pipeline.steps.table import step_module
from rmsnorm_export.pipeline.tables import STEPS, StepName
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.records import to_json
from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.progress import Progress

Told = Callable[[StepOutcome], None]


def run_pipeline(
    path: str | os.PathLike[str],
    *,
    until: StepName | None = None,
    force_step: StepName | None = None,
    dry_run: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    told: Told | None = None,
) -> Deployment:
    """Run a pipeline: export, optimize, prove, build, verify, bench, package, as a TOML file says.

    A step is skipped when nothing that its result depends on has changed - options, files with
    their external data, packages, this package's sources, outputs of earlier steps - and its
    outputs are as it made them. It appears in the pipeline's folder whole or not at all, so a run
    that was killed goes on where it was. After the first step that fails, no other runs.

    Args:
        path: of the pipeline file; see ``scripts/examples``. Paths in it are relative to it.
        until: the last step to run.
        force_step: run this one and those after it, changed or not.
        dry_run: change nothing; say what would run and why.
        force: replace a version in the model repository that another run of ``package`` made, and
            files of it that were edited.
        progress: called with the work at hand, the steps of it that are over and its steps in all.
        told: called with the outcome of each step when it is known.

    Returns:
        What became of every step; it does not raise when one fails: see ``passed``, ``exit_code``
        and ``require()``. The same stands in ``FOLDER/deploy.json``.

    Raises:
        UsageError: the file has a table, key or value that cannot be used, an option names a step
            that it does not have, or the folder is another's or held by another run.
        InputError: a file cannot be read, or the folder not be written.
        BackendMissingError: a package that a step will need is not installed.
    """
    settings = settle(read_document(path))
    _check_step(settings, "until", until)
    _check_step(settings, "force_step", force_step)
    start = time.perf_counter()
    exists = check_folder(settings.folder, settings.name, settings.document.path)
    wanted = [s for s in settings.steps if until is None or STEPS.index(s) <= STEPS.index(until)]
    run = _Run(settings, force, progress or (lambda *_: None), told or (lambda _: None), start)
    if dry_run:
        planned = plan_steps(settings, wanted, force_step)
        _check_backends(settings, planned, force=force)
        for step in settings.steps:
            run.planned(planned, step)
        return run.deployment(dry_run=True)
    if not exists:
        _check_backends(settings, plan_steps(settings, wanted, force_step), force=force)
    with working_in(settings.folder, settings.name, settings.document.path):
        planned = plan_steps(settings, wanted, force_step)
        _check_backends(settings, planned, force=force)
        try:
            for step in settings.steps:
                if run.failed or step not in planned:
                    run.not_run(step, planned, until)
                else:
                    run.step(step, planned[step])
        except BaseException:
            run.give_up(planned)
            raise
        return run.write()


def _check_step(settings: Settings, option: str, step: str | None) -> None:
    if step is not None and step not in settings.steps:
        raise UsageError(
            "The pipeline has no such step.",
            found=f"--{option.replace('_', '-')} {short(step)}",
            fix=f"its steps are {', '.join(settings.steps)}",
        )


def _check_backends(settings: Settings, planned: dict[StepName, Planned], *, force: bool) -> None:
    """Before the first step: what every one that may run will need."""
    for step, plan in planned.items():
        if plan.plan != "skip":
            step_module(step).check(settings, force)


class _Run:
    """One run, and what became of the steps so far."""

    def __init__(
        self, settings: Settings, force: bool, progress: Progress, told: Told, start: float
    ) -> None:
        self.settings = settings
        self.force = force
        self.progress = progress
        self.told = told
        self.start = start
        self.outcomes: list[StepOutcome] = []
        self.failed: StepName | None = None

    def step(self, step: StepName, planned: Planned) -> None:
        """Skip or run one step."""
        begin = time.perf_counter()
        try:
            why, inputs = state_of(self.settings, step, planned)
            if not why:
                self._skipped(step, time.perf_counter() - begin)
                return
            self.progress(f"{step}: {why}", 0, 1)
            made = self._make(step, inputs)
        except (Error, OSError) as error:
            known = (
                error if isinstance(error, Error) else as_step_error(error, self.settings.folder)
            )
            self._failed(step, planned, failure_of(known), time.perf_counter() - begin)
            return
        except BaseException as error:
            self._failed(step, planned, failure_of(error), time.perf_counter() - begin)
            raise
        self._done(step, planned, why, made, time.perf_counter() - begin)

    def _make(self, step: StepName, inputs: dict[str, str]) -> Made:
        """Run a step in a folder of its own, which then takes the place of the old one."""
        begin, home = time.perf_counter(), self.settings.step_folder(step)
        before = read_record(home)

        def progress(what: str, done: int, total: int) -> None:
            self.progress(f"{step}: {what}", done, total)

        with named_errors(self.settings.folder), Stage(home, home.parent) as stage:
            made = step_module(step).run(self.settings, stage.folder, progress, self.force)
            names = files_in(stage.folder)
            progress("putting it into place", 1, 1)
            record = StepRecord(
                step=step,
                inputs=inputs,
                reads=dict(made.reads),
                outputs=identities(
                    stage.folder, [*(stage.folder / name for name in names), *made.elsewhere]
                ),
                summary=one_line(made.summary, 300),
                facts=made.facts,
                failure=made.failure,
                made=_now(),
                seconds=round(time.perf_counter() - begin, 3),
            )
            write_whole(stage.folder / RECORD, to_json(record))
            old = () if before is None else (output.path for output in before.outputs)
            stage.keep({RECORD, *names, *old})
            stage.publish()
        progress("done", 1, 1)
        return made

    def _add(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        self.told(outcome)

    def _skipped(self, step: StepName, seconds: float) -> None:
        home = self.settings.step_folder(step)
        record = read_record(home)
        assert record is not None
        self._add(
            StepOutcome(
                name=step, state="skipped", plan="skip", why="nothing has changed",
                seconds=seconds, summary=record.summary, folder=home,
                outputs=tuple(output.path for output in record.outputs), facts=record.facts,
            )
        )  # fmt: skip

    def _done(self, step: StepName, planned: Planned, why: str, made: Made, seconds: float) -> None:
        home = self.settings.step_folder(step)
        record = read_record(home)
        outputs = () if record is None else tuple(output.path for output in record.outputs)
        if made.failure is not None:
            self.failed = step
        self._add(
            StepOutcome(
                name=step, state="done" if made.failure is None else "failed", plan=planned.plan,
                why=why, seconds=seconds, summary=one_line(made.summary, 300), folder=home,
                outputs=outputs, facts=made.facts, failure=made.failure,
            )
        )  # fmt: skip

    def _failed(
        self, step: StepName, planned: Planned, failure: StepFailure, seconds: float
    ) -> None:
        self.failed = step
        home = self.settings.step_folder(step)
        self._add(
            StepOutcome(
                name=step, state="failed", plan=planned.plan, why=planned.why, seconds=seconds,
                summary="", folder=home, failure=failure,
            )
        )  # fmt: skip

    def not_run(
        self, step: StepName, planned: dict[StepName, Planned], until: StepName | None
    ) -> None:
        """A step that this run leaves as it is."""
        why = f"{self.failed} failed" if self.failed else f"it is behind --until {until}"
        plan = planned[step].plan if step in planned else "skip"
        home = self.settings.step_folder(step)
        self._add(StepOutcome(step, "not run", plan, why, 0.0, "", home))

    def planned(self, planned: dict[StepName, Planned], step: StepName) -> None:
        """What a run would do with a step."""
        home = self.settings.step_folder(step)
        if step not in planned:
            self._add(StepOutcome(step, "not run", "skip", "it is behind --until", 0.0, "", home))
            return
        plan = planned[step]
        if plan.plan == "skip":
            self._skipped(step, 0.0)
        else:
            self._add(StepOutcome(step, "not run", plan.plan, plan.why, 0.0, "", home))

    def give_up(self, planned: dict[StepName, Planned]) -> None:
        """The run ends in the middle; what is known is written, if it can be."""
        had = {outcome.name for outcome in self.outcomes}
        self.told = lambda _: None
        for step in self.settings.steps:
            if step not in had:
                self.not_run(step, planned, None)
        try:
            self.write()
        except Error:
            return

    def deployment(self, *, dry_run: bool) -> Deployment:
        """All of it."""
        failure = next((o.failure for o in self.outcomes if o.failure is not None), None)
        return Deployment(
            name=self.settings.name,
            path=self.settings.document.path,
            folder=self.settings.folder,
            passed=failure is None,
            exit_code=0 if failure is None else failure.exit_code,
            dry_run=dry_run,
            steps=tuple(self.outcomes),
            tool=f"rmsnorm-export {version_of('rmsnorm-export')}",
            date=_now(),
            seconds=round(time.perf_counter() - self.start, 3),
        )

    def write(self) -> Deployment:
        """The deployment, after it was written to ``deploy.json``.

        A disk that was too full for a step may be too full for this file: the step's error is what
        matters then.
        """
        deployment = self.deployment(dry_run=False)
        path: Path = self.settings.folder / SUMMARY
        try:
            with named_errors(self.settings.folder):
                write_whole(path, to_json(deployment))
        except Error:
            if deployment.passed:
                raise
        return deployment


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

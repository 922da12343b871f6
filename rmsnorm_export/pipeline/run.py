"""``run_pipeline``: every step that is not up to date, in order, until one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import Error, Failure, InputError, UsageError
from rmsnorm_export.pipeline.identity import SMALL, below
from rmsnorm_export.pipeline.place import (
    RECORD,
    SUMMARY,
    check_folder,
    named_errors,
    read_record,
    working_in,
)
from rmsnorm_export.pipeline.read import read_document
from rmsnorm_export.pipeline.result import (
    Deployment,
    Plan,
    State,
    StepOutcome,
    StepRecord,
)
from rmsnorm_export.pipeline.settings import Settings, settle
from rmsnorm_export.pipeline.steps.base import Made, Step, files_in
from rmsnorm_export.pipeline.steps.bench import BenchStep
from rmsnorm_export.pipeline.steps.build import BuildStep
from rmsnorm_export.pipeline.steps.export import ExportStep
from rmsnorm_export.pipeline.steps.optimize import OptimizeStep
from rmsnorm_export.pipeline.steps.package import PackageStep
from rmsnorm_export.pipeline.steps.prove import ProveStep
from rmsnorm_export.pipeline.steps.verify import VerifyStep
from rmsnorm_export.pipeline.tables import STEPS, StepName
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.progress import Progress, ProgressChoice, shows_progress
from rmsnorm_export.system.provenance import Provenance, provenance, utc_now
from rmsnorm_export.system.reading import read_file

Told = Callable[[StepOutcome], None]

_STEP_CLASSES: tuple[type[Step[Any]], ...] = (
    ExportStep,
    OptimizeStep,
    ProveStep,
    BuildStep,
    VerifyStep,
    BenchStep,
    PackageStep,
)

_ORDER = ("option", "file", "step", "machine", "package", "program")
"""Kinds of what a result depends on: the first that changed is told, options before files."""


@shows_progress
def run_pipeline(
    path: str | os.PathLike[str],
    *,
    changes: Sequence[str] = (),
    until: StepName | None = None,
    force_step: StepName | None = None,
    dry_run: bool = False,
    force: bool = False,
    require_verified: bool = False,
    progress: ProgressChoice = None,
    told: Told | None = None,
) -> Deployment:
    """Run a pipeline: export, optimize, prove, build, verify, bench, package, as a TOML file says.

    A step is skipped when nothing that its result depends on has changed - options, files with
    their external data, packages, this package's sources, outputs of earlier steps - and its
    outputs are as it made them. It appears in the pipeline's folder whole or not at all, so a run
    that was killed goes on where it was. After the first step that fails, no other runs.

    Args:
        path: of the pipeline file; see ``docs/examples``. Paths in it are relative to it.
        changes: ``TABLE.KEY=VALUE`` each, as if it stood in the file.
        until: the last step to run.
        force_step: run this one and those after it, changed or not.
        dry_run: change nothing; say what would run and why.
        force: replace a version in the model repository that another run of ``package`` made, and
            files of it that were edited.
        require_verified: as if [verify] and [package] said so: what could not be run here to
            compare it is a failure.
        progress: called with the work at hand, the steps of it that are over and its steps in all;
            None: a bar in notebooks and terminals; False: nothing.
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
    settings = settle(read_document(path, changes))
    if require_verified:
        settings = settings.requiring_verified()
    _check_step(settings, "until", until)
    _check_step(settings, "force_step", force_step)
    start = time.perf_counter()
    exists = check_folder(settings.folder, settings.name, settings.document.path)
    wanted = [s for s in settings.steps if until is None or STEPS.index(s) <= STEPS.index(until)]
    run = _Run(settings, force, progress or (lambda *_: None), told or (lambda _: None), start)

    def plan() -> dict[StepName, _Planned]:
        planned = _plan_steps(settings, wanted, force_step)
        for item in planned.values():  # before the first step: what each that may run will need
            if item.plan != "skip":
                item.step.check(force)
        return planned

    planned = plan() if dry_run or not exists else {}
    if dry_run:
        for step in settings.steps:
            run.expect(step, planned.get(step))
        return run.deployment(dry_run=True)
    with working_in(settings.folder, settings.name, settings.document.path):
        planned = planned or plan()
        try:
            for step in settings.steps:
                if run.failed:
                    run.add(step, planned.get(step), "not run", f"{run.failed} failed")
                elif step in planned:
                    run.step(planned[step])
                else:
                    run.add(step, None, "not run", f"it is behind --until {until}")
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """What is to become of a step.

    Attributes:
        step: that it is about.
        plan: as in ``StepOutcome``.
        why: the reason; "" to skip it.
    """

    step: Step[Any]
    plan: Plan
    why: str


def _plan_steps(
    settings: Settings, wanted: Sequence[StepName], force_step: StepName | None
) -> dict[StepName, _Planned]:
    """What is to become of every step in ``wanted``, as far as can be told before the first runs.

    Raises:
        InputError, BackendMissingError: an input of a step cannot be read, or had.
    """
    steps = {cls.name: cls for cls in _STEP_CLASSES}
    planned: dict[StepName, _Planned] = {}
    for name in wanted:
        step = steps[name](settings)
        before = [need for need in step.needs() if need in planned and planned[need].why]
        plan: Plan = "run"
        if force_step is not None and STEPS.index(name) >= STEPS.index(force_step):
            why = f"--force-step {force_step}"
        elif not (why := _unfinished(step)) and before:
            plan, why = "maybe", f"if {' or '.join(before)} makes something else"
        else:
            why = why or _changes(step, step.inputs())
        planned[name] = _Planned(step, plan if why else "skip", why)
    return planned


def _changes(step: Step[Any], inputs: dict[str, str]) -> str:
    """Why a step must run, "" when it need not.

    Args:
        step: what it needs has run.
        inputs: what its result depends on now.
    """
    record, files = read_record(step.home), step.settings.files
    if record is None or record.failure is not None:
        return _unfinished(step)
    return (
        _changed_input(record.inputs, inputs)
        or files.changed_read(step.settings.document.path.parent, record.reads)
        or files.changed_output(step.home, record.outputs)
    )


def _unfinished(step: Step[Any]) -> str:
    record = read_record(step.home)
    if record is None:
        return "it has not run yet"
    return "" if record.failure is None else "it failed the last time"


def _changed_input(before: dict[str, str], now: dict[str, str]) -> str:
    """The first thing that is another now; the program and packages last, options first."""
    names = sorted({*before, *now}, key=lambda name: (_ORDER.index(name.split()[0]), name))
    for name in names:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        kind, _, rest = name.partition(" ")
        if kind == "program":
            return "rmsnorm-export itself was changed"
        if kind in ("file", "step"):
            return (
                f"{rest} {'is new' if old is None else 'is gone' if new is None else 'was changed'}"
            )
        return f"{rest}: {short(old or 'nothing', 60)} became {short(new or 'nothing', 60)}"
    return ""


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
        self.records: dict[StepName, StepRecord] = {}

    def step(self, planned: _Planned) -> None:
        """Skip or run one step."""
        begin, step, why = time.perf_counter(), planned.step, planned.why
        made, inputs = None, {}
        try:
            with named_errors(self.settings.folder):
                if planned.plan != "skip":
                    inputs = step.inputs()
                if planned.plan == "maybe":
                    why = _changes(step, inputs)
                if why:
                    self.progress(f"{step.name}: {why}", 0, 1)
                    made = self._make(step, inputs)
        except BaseException as error:
            self.add(step.name, planned, "failed", planned.why, begin, Failure.of(error))
            if not isinstance(error, Error):
                raise
            return
        if made is not None and made.failure is not None:
            failure = Failure.of(made.failure)
            self.add(step.name, planned, "failed", why, begin, failure, recorded=True)
        elif made is not None:
            self.add(step.name, planned, "done", why, begin, recorded=True)
        else:
            self.skip(planned, begin)

    def skip(self, planned: _Planned, begin: float) -> None:
        """A step that an earlier run made."""
        skipped = dataclasses.replace(planned, plan="skip")
        self.add(planned.step.name, skipped, "skipped", "nothing has changed", begin, recorded=True)

    def expect(self, name: StepName, planned: _Planned | None) -> None:
        """What a run would do with a step."""
        if planned is not None and planned.plan == "skip":
            self.skip(planned, time.perf_counter())
        else:
            why = "it is behind --until" if planned is None else planned.why
            self.add(name, planned, "not run", why)

    def _make(self, step: Step[Any], inputs: dict[str, str]) -> Made:
        """Run a step in a folder of its own, which then takes the place of the old one."""
        begin = time.perf_counter()
        before = read_record(step.home)

        def progress(what: str, done: int, total: int) -> None:
            self.progress(f"{step.name}: {what}", done, total)

        with Stage(step.home, step.home.parent) as stage:
            made = step.run(stage.folder, progress, self.force)
            names = files_in(stage.folder)
            progress("putting it into place", 1, 1)
            paths = [*(stage.folder / name for name in names), *made.elsewhere]
            record = StepRecord(
                step=step.name,
                inputs=inputs,
                reads=dict(made.reads),
                outputs=self.settings.files.outputs(stage.folder, paths),
                summary=one_line(made.summary, 300),
                facts=made.facts,
                failure=None if made.failure is None else Failure.of(made.failure),
                made=_now(),
                seconds=round(time.perf_counter() - begin, 3),
            )
            write_whole(stage.folder / RECORD, to_json(record))
            old = () if before is None else (output.path for output in before.outputs)
            stage.keep({RECORD, *names, *old})
            stage.publish()
        progress("done", 1, 1)
        return made

    def add(
        self,
        name: StepName,
        planned: _Planned | None,
        state: State,
        why: str,
        begin: float | None = None,
        failure: Failure | None = None,
        *,
        recorded: bool = False,
    ) -> None:
        """Note and tell what became of a step.

        Args:
            name: of the step.
            planned: what was to become of it; None: nothing.
            state: what became of it.
            why: the reason.
            begin: when it began; None: it did not.
            failure: why it failed.
            recorded: its record says what came out.
        """
        home = self.settings.step_folder(name)
        record = read_record(home) if recorded else None
        if record is not None:
            self.records[name] = record
        if failure is not None:
            self.failed = name
        outcome = StepOutcome(
            name=name,
            state=state,
            plan="skip" if planned is None else planned.plan,
            why=why,
            seconds=0.0 if begin is None else time.perf_counter() - begin,
            summary="" if record is None else record.summary,
            folder=home,
            outputs=() if record is None else tuple(output.path for output in record.outputs),
            facts={} if record is None else record.facts,
            failure=failure,
        )
        self.outcomes.append(outcome)
        self.told(outcome)

    def give_up(self, planned: dict[StepName, _Planned]) -> None:
        """The run ends in the middle; what is known is written, if it can be."""
        had = {outcome.name for outcome in self.outcomes}
        self.told = lambda _: None
        for name in self.settings.steps:
            if name not in had:
                self.add(name, planned.get(name), "not run", f"{self.failed} failed")
        with contextlib.suppress(Error):
            self.write()

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
        folder = self.settings.folder
        deployment = self.deployment(dry_run=False)
        try:
            with named_errors(folder):
                made = self._provenance().seen_from(folder, self.settings.document.path.parent)
                deployment = dataclasses.replace(deployment, provenance=made)
                write_whole(folder / SUMMARY, to_json(deployment))
        except Error:
            if deployment.passed:
                raise
        return deployment

    def _provenance(self) -> Provenance:
        """What the run was made from, and every file of its steps.

        A large file that was not written since the last run has the hash that it had then.
        """
        settings, before, since = self.settings, {}, 0
        with contextlib.suppress(OSError, InputError):
            path = settings.folder / SUMMARY
            since = path.stat().st_mtime_ns
            last = from_json(read_file(path), Deployment).provenance
            states = () if last is None else (*last.inputs, *last.outputs)
            before = {os.path.abspath(path.parent / state.path): state for state in states}

        def sha256(path: Path) -> str:
            known, info = before.get(os.path.abspath(path)), path.stat()
            if known is None or known.bytes != info.st_size or info.st_mtime_ns >= since:
                return settings.files.sha256(path)
            return known.sha256 if info.st_size > SMALL else settings.files.sha256(path)

        inputs = [settings.document.path]
        if settings.model is not None:
            inputs += settings.files.of_model(settings.model.path)
        elif settings.export is not None:
            source = [Path(settings.source)] if os.path.isabs(settings.source) else []
            inputs += [file for path in (*source, *settings.export.files) for file in below(path)]
        outputs = [
            settings.step_folder(name) / output.path
            for name, record in self.records.items()
            for output in record.outputs
        ]
        return provenance(inputs, outputs, sha256)


def _now() -> str:
    return utc_now().isoformat(timespec="seconds")

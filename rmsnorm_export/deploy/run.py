"""``run_pipeline``: every step that is not up to date, in order, until one fails.

    FOLDER/.lock              held while somebody works in it; the system lets go of a dead one's
    FOLDER/STEP/...           outputs of a step, and its record
    FOLDER/deploy.json        the last run

A step appears whole or not at all: it is made in a hidden folder that takes the place of the old
one in a single rename. What a killed run leaves of these is removed by the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rmsnorm_export.deploy.result import RECORD, Deployment, StepOutcome, out_of_date, read_record
from rmsnorm_export.deploy.settings import Settings, StepName, read_settings
from rmsnorm_export.deploy.steps import STEP_CLASSES, Step
from rmsnorm_export.errors import Error, Failure, UsageError
from rmsnorm_export.options import Progress
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.records import to_json
from rmsnorm_export.system.files import TEMP_SUFFIX, next_state, refusals_as, write_whole
from rmsnorm_export.system.provenance import utc_now
from rmsnorm_export.system.reading import read_file

SUMMARY, LOCK = "deploy.json", ".lock"


def check_folder(folder: Path) -> None:
    """Refuse a folder that no pipeline made and that is not empty; nothing is made or changed.

    Raises:
        UsageError: it holds files of other origin.
        InputError: it is no folder, or cannot be read.
    """
    if os.path.lexists(folder):
        with writing(folder):
            others = [path.name for path in folder.iterdir()]
        if others and LOCK not in others:
            found = f"{short(str(folder), 300)} holds {short(min(others))}"
            fix = "give another [pipeline] folder, or an empty one"
            raise UsageError("No pipeline made the folder.", found=found, fix=fix)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Hold the folder while the block runs; it is made where it is missing.

    Raises:
        UsageError: another run holds it.
        InputError: it cannot be made or written.
    """
    lock = folder / LOCK
    with contextlib.ExitStack() as held:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(FileLock(lock, timeout=0))
            except Timeout as error:
                what = "Another run works in the folder of the pipeline."
                holder = short(read_file(lock).decode("utf-8", "replace").strip()) or "a process"
                found = f"{short(str(folder), 300)} is held by {holder}"
                raise UsageError(what, found=found, fix="wait for its end, or end it") from error
            lock.write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
            for path in folder.glob(f".*{TEMP_SUFFIX}*"):  # nobody else works here, or needs it
                folders = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if folders else path.unlink()
        yield


def writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn what the operating system refuses in a block into an ``InputError``."""
    what = "The folder of the pipeline cannot be made or used."
    fix = "check the path, its permissions and space, or give another [pipeline] folder"
    return refusals_as(what, folder, fix=fix)


def run_pipeline(
    path: str | os.PathLike[str],
    *,
    until: StepName | None = None,
    dry_run: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Deployment:
    """Run a pipeline: export, optimize, build, verify, bench, package, as a TOML file says.

    A step is skipped when its record holds: nothing that its result depends on has changed -
    options, files with their external data, versions of packages - and its outputs are there. It
    appears in the pipeline's folder whole or not at all, so a run that was killed goes on
    where it was. After the first step that fails, no other runs.

    Args:
        path: of the pipeline file. Paths in it are relative to it.
        until: the last step to run.
        dry_run: change nothing; say what would run and why.
        force: replace a version in the model repository that another run of ``package`` made, and
            files of it that were edited.
        progress: called with the work at hand, the steps of it that are over and its steps in all.

    Returns:
        The outcome of every step; it does not raise when one fails: see ``error``. The same is
        written to ``FOLDER/deploy.json``.

    Raises:
        UsageError: the file has a table, key or value that cannot be used, ``until`` is a step
            that it does not have, or the folder is another's or held by another run.
        InputError: a file cannot be read, or the folder not be written.
        BackendMissingError: a package that a step will need is not installed.
    """
    settings = read_settings(Path(os.path.abspath(path)))
    if until is not None and until not in settings.steps:
        fix = f"its steps are {', '.join(settings.steps)}"
        raise UsageError("The pipeline has no such step.", found=f"--until {short(until)}", fix=fix)
    check_folder(settings.folder)
    run = _Run(settings, until, force, progress)
    planned = run.plan()
    if dry_run:
        return run.deployment(planned, dry_run=True)
    with working_in(settings.folder):
        try:
            for name in settings.steps:
                run.step(name)
        except BaseException:
            with contextlib.suppress(Error):
                run.write()
            raise
        return run.write()


class _Run:
    """One run, and the outcomes of its steps so far."""

    def __init__(
        self, settings: Settings, until: StepName | None, force: bool, progress: Progress | None
    ) -> None:
        self.settings, self.progress = settings, progress or (lambda *_: None)
        self.start = time.perf_counter()
        self.outcomes: list[StepOutcome] = []
        last = settings.steps.index(until) + 1 if until else len(settings.steps)
        self.steps = {name: STEP_CLASSES[name](settings, force) for name in settings.steps[:last]}

    def plan(self) -> list[StepOutcome]:
        """Return what would become of every step; refuse what lacks a package."""
        planned: list[StepOutcome] = []
        before = ""
        for step in self.steps.values():
            step.check()
        for name in self.settings.steps:
            outcome = StepOutcome(name, "not run", "it comes after --until")
            if name in self.steps and before:
                outcome = StepOutcome(name, "may run", f"if {before} makes something else")
            elif name in self.steps:
                why = out_of_date(self.steps[name].home, self.steps[name].inputs())
                outcome = StepOutcome(name, "would run", why) if why else self.skipped(name)
                before = name if why else ""
            planned.append(outcome)
        return planned

    def skipped(self, name: StepName) -> StepOutcome:
        """Return the outcome of a step whose record holds."""
        record = read_record(self.settings.folder / name)
        assert record is not None
        return dataclasses.replace(record, state="skipped", why="", seconds=0.0)

    def step(self, name: StepName) -> None:
        """Skip or run one step."""
        failed = next((one.name for one in self.outcomes if one.failure is not None), None)
        if failed or name not in self.steps:
            why = f"{failed} failed" if failed else "it comes after --until"
            self.outcomes.append(StepOutcome(name, "not run", why))
            return
        step, begin, outcome = self.steps[name], time.perf_counter(), StepOutcome(name, "failed")
        try:
            with writing(self.settings.folder):
                inputs = step.inputs()
                why = out_of_date(step.home, inputs)
                outcome = dataclasses.replace(outcome, why=why)
                outcome = self._make(step, inputs, why) if why else self.skipped(name)
        except BaseException as error:
            outcome = dataclasses.replace(outcome, failure=Failure.of(error))
            if not isinstance(error, Error):
                raise
        finally:
            seconds = round(time.perf_counter() - begin, 3)
            self.outcomes.append(dataclasses.replace(outcome, seconds=seconds))

    def _make(self, step: Step, inputs: dict[str, str], why: str) -> StepOutcome:
        """Run a step in a folder of its own, which then takes the place of the old one."""

        def progress(what: str, done: int, total: int) -> None:
            self.progress(f"{step.name}: {what}", done, total)

        progress(why, 0, 1)
        before = read_record(step.home)
        replaced = {RECORD, *(before.outputs if before else ())}
        with next_state(step.home, replaced, step.home.parent) as folder:
            products = step.run(folder, progress)
            for name, result in products.results.items():
                (folder / f"{name}.json").write_text(result.to_json(), encoding="utf-8")
            progress("putting it into place", 1, 1)
            own = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
            elsewhere = [Path(os.path.relpath(path, step.home)) for path in products.elsewhere]
            outcome = StepOutcome(
                step.name,
                "failed" if products.failure else "done",
                why,
                inputs=inputs,
                outputs=tuple(path.as_posix() for path in (*own, *elsewhere)),
                summary=one_line(products.summary(), 300),
                notes=tuple(dict.fromkeys(products.notes)),
                failure=None if products.failure is None else Failure.of(products.failure),
            )
            replaced |= {*outcome.outputs}
            write_whole(folder / RECORD, to_json(outcome))
        progress("done", 1, 1)
        return outcome

    def deployment(self, outcomes: list[StepOutcome], *, dry_run: bool = False) -> Deployment:
        """Return all of it."""
        codes = (one.failure.exit_code for one in outcomes if one.failure is not None)
        return Deployment(
            name=self.settings.name,
            path=self.settings.path,
            folder=self.settings.folder,
            dry_run=dry_run,
            steps=tuple(outcomes),
            date=utc_now(),
            seconds=round(time.perf_counter() - self.start, 3),
            exit_code=next(codes, 0),
        )

    def write(self) -> Deployment:
        """Return the deployment, after it was written to ``deploy.json``.

        A disk that was too full for a step may be too full for this file: the step's error is what
        matters then.
        """
        rest = self.settings.steps[len(self.outcomes) :]  # where the run ends in the middle
        self.outcomes += [StepOutcome(name, "not run", "the run ended before") for name in rest]
        deployment = self.deployment(self.outcomes)
        try:
            with writing(self.settings.folder):
                write_whole(self.settings.folder / SUMMARY, to_json(deployment))
        except Error:
            if deployment.error is None:
                raise
        return deployment

"""Which steps have to run, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.pipeline.identity import (
    PACKAGES,
    changed_output,
    changed_read,
    packages,
    program,
)
from rmsnorm_export.pipeline.place import read_record
from rmsnorm_export.pipeline.result import Plan
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.table import step_module
from rmsnorm_export.pipeline.tables import STEPS, StepName
from rmsnorm_export.printable import short


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """What is to become of a step.

    Attributes:
        plan: as in ``StepOutcome``.
        why: the reason; "" to skip it.
        forced: it runs whatever has changed.
    """

    plan: Plan
    why: str
    forced: bool = False


def plan_steps(
    settings: Settings, wanted: Sequence[StepName], force_step: StepName | None
) -> dict[StepName, Planned]:
    """What is to become of every step in ``wanted``, as far as can be told before the first runs.

    Raises:
        InputError, BackendMissingError: an input of a step cannot be read, or had.
    """
    planned: dict[StepName, Planned] = {}
    for step in wanted:
        if force_step is not None and STEPS.index(step) >= STEPS.index(force_step):
            planned[step] = Planned("run", f"--force-step {force_step}", forced=True)
            continue
        before = [
            need
            for need in step_module(step).needs(settings)
            if need in planned and planned[need].plan != "skip"
        ]
        home = settings.step_folder(step)
        record = read_record(home)
        if record is None:
            planned[step] = Planned("run", "it has not run yet")
        elif record.failure is not None:
            planned[step] = Planned("run", "it failed the last time")
        elif before:
            planned[step] = Planned("maybe", f"if {' or '.join(before)} makes something else")
        else:
            why, _ = state_of(settings, step, Planned("maybe", ""))
            planned[step] = Planned("run" if why else "skip", why)
    return planned


def state_of(settings: Settings, step: StepName, planned: Planned) -> tuple[str, dict[str, str]]:
    """Why a step must run, or "" when it need not; and what its result depends on now.

    The steps that it needs have run.
    """
    inputs = {
        "program": program(),
        **packages(PACKAGES[step]),
        **step_module(step).inputs(settings),
    }
    if planned.forced or planned.plan == "run":
        return planned.why, inputs
    home = settings.step_folder(step)
    record = read_record(home)
    if record is None:
        return "it has not run yet", inputs
    if record.failure is not None:
        return "it failed the last time", inputs
    why = _changed_input(record.inputs, inputs)
    why = why or changed_read(settings.document.path.parent, record.reads)
    why = why or changed_output(home, record.outputs)
    return why, inputs


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


_ORDER = ("option", "file", "step", "machine", "package", "program")

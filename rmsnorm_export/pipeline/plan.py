"""Which steps have to run, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rmsnorm_export.pipeline.place import read_record
from rmsnorm_export.pipeline.result import Plan
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import Step
from rmsnorm_export.pipeline.steps.bench import BenchStep
from rmsnorm_export.pipeline.steps.build import BuildStep
from rmsnorm_export.pipeline.steps.export import ExportStep
from rmsnorm_export.pipeline.steps.optimize import OptimizeStep
from rmsnorm_export.pipeline.steps.package import PackageStep
from rmsnorm_export.pipeline.steps.prove import ProveStep
from rmsnorm_export.pipeline.steps.verify import VerifyStep
from rmsnorm_export.pipeline.tables import STEPS, StepName
from rmsnorm_export.printable import short

_STEP_CLASSES: tuple[type[Step[Any]], ...] = (
    ExportStep,
    OptimizeStep,
    ProveStep,
    BuildStep,
    VerifyStep,
    BenchStep,
    PackageStep,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """What is to become of a step.

    Attributes:
        step: that it is about.
        plan: as in ``StepOutcome``.
        why: the reason; "" to skip it.
    """

    step: Step[Any]
    plan: Plan
    why: str


def plan_steps(
    settings: Settings, wanted: Sequence[StepName], force_step: StepName | None
) -> dict[StepName, Planned]:
    """What is to become of every step in ``wanted``, as far as can be told before the first runs.

    Raises:
        InputError, BackendMissingError: an input of a step cannot be read, or had.
    """
    steps = {cls.name: cls for cls in _STEP_CLASSES}
    planned: dict[StepName, Planned] = {}
    for name in wanted:
        step = steps[name](settings)
        before = [need for need in step.needs() if need in planned and planned[need].why]
        plan: Plan = "run"
        if force_step is not None and STEPS.index(name) >= STEPS.index(force_step):
            why = f"--force-step {force_step}"
        elif not (why := _unfinished(step)) and before:
            plan, why = "maybe", f"if {' or '.join(before)} makes something else"
        else:
            why = why or changes(step, step.inputs())
        planned[name] = Planned(step, plan if why else "skip", why)
    return planned


def changes(step: Step[Any], inputs: dict[str, str]) -> str:
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


_ORDER = ("option", "file", "step", "machine", "package", "program")

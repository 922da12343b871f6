"""What all steps have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.pipeline.identity import onnx_files, text_of
from rmsnorm_export.pipeline.place import read_record
from rmsnorm_export.pipeline.result import StepFailure
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.tables import StepName, Subject
from rmsnorm_export.runtime.sizes import Shapes
from rmsnorm_export.serving.served_model import interface
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.shapes import make_profiles

Progress = Callable[[str, int, int], None]

MODEL_FILES = "model_files"
"""Fact of a step that makes a model: its files, external data included."""

REPORT = "report.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What a step made, apart from the files in its folder.

    Attributes:
        summary: one line.
        facts: for the record; plain values.
        failure: why the step failed, although it has a result.
        reads: files that its result turned out to depend on; see ``StepRecord``.
        elsewhere: files that it made outside of its folder.
    """

    summary: str
    facts: dict[str, Any]
    failure: StepFailure | None = None
    reads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    elsewhere: tuple[Path, ...] = ()


class Step(Protocol):
    """A step, which is a module."""

    def needs(self, settings: Settings) -> tuple[StepName, ...]:
        """Steps whose outputs it reads, of those that the pipeline has."""

    def inputs(self, settings: Settings) -> dict[str, str]:
        """What its result depends on, besides packages and this program; see ``StepRecord``.

        The steps that it needs have run.
        """

    def check(self, settings: Settings, force: bool) -> None:
        """Before the first step runs: packages, machine and places that it will need.

        Raises:
            Error: something is not there.
        """

    def run(self, settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:
        """Do the work.

        Args:
            settings: of the pipeline.
            folder: for the outputs; empty.
            progress: called with the work at hand, the steps that are over and the steps in all.
            force: edited files of a package may be replaced.

        Raises:
            Error: it failed and has no result.
        """


def options(table: Any, *leave: str) -> dict[str, str]:
    """The keys of a table as inputs; paths are left out, for files are known by their contents."""
    found = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if field.name not in leave and not isinstance(value, Path):
            found[f"option {field.name}"] = text_of(value)
    return found


def subject_needs(settings: Settings, subject: Subject) -> tuple[StepName, ...]:
    """The step that makes the raw or the optimized model; () for the file of [model]."""
    if subject == "optimized":
        return ("optimize",)
    return ("export",) if settings.export is not None else ()


def subject_inputs(settings: Settings, subject: Subject) -> dict[str, str]:
    """What identifies the raw or the optimized model."""
    made_by = subject_needs(settings, subject)
    if not made_by:
        return onnx_files(settings.onnx(subject))
    return outputs_of_step(settings, made_by[0], MODEL_FILES)


def outputs_of_step(settings: Settings, step: StepName, *facts: str) -> dict[str, str]:
    """What identifies the outputs of a step that its record names under ``facts``."""
    record = read_record(settings.step_folder(step))
    if record is None:
        return {f"step {step}": "has not run"}
    names = {name for fact in facts for name in record.facts.get(fact, ())}
    return {
        f"file {step}/{output.path}": output.sha256 or f"{output.bytes} B, {output.modified_ns} ns"
        for output in record.outputs
        if output.path in names
    }


def check_shapes(settings: Settings, shapes: Shapes | None) -> None:
    """Where the pipeline begins with a file, before any work: the shapes fit its inputs.

    Raises:
        UsageError, InputError: they do not, or the file cannot be read.
    """
    if settings.model is None or shapes is None:
        return
    inputs, _ = interface(load_model(settings.model.path).model)
    make_profiles(inputs, shapes)


def require_package(module: str, what: str, pip: str) -> None:
    """Raise ``BackendMissingError`` unless ``module`` can be found; it is not imported."""
    if not is_installed(module):
        raise BackendMissingError(
            f"{what} needs a package that is not installed.", found=f"no package {module}", fix=pip
        )


def files_in(folder: Path) -> list[str]:
    """Names of the files in the folder of a step, sorted."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

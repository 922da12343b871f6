"""What all steps have in common."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.graph.bundle import open_folder
from rmsnorm_export.options import written
from rmsnorm_export.pipeline.identity import packages, program, text_of
from rmsnorm_export.pipeline.place import read_record
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.tables import StepName, Subject
from rmsnorm_export.records import to_json
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.system.provenance import provenance
from rmsnorm_export.tensorrt.engine.model import make_profiles
from rmsnorm_export.tensorrt.engine.options import BuildOptions

Table = TypeVar("Table")

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
    failure: VerificationError | None = None
    reads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    elsewhere: tuple[Path, ...] = ()


class Step(Generic[Table]):
    """A step of one pipeline.

    Attributes:
        name: of the step and of its table.
        packages: those that its result depends on.
        settings: of the pipeline.
        table: of the step.
    """

    name: ClassVar[StepName]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.table: Table = getattr(settings, self.name)

    @property
    def home(self) -> Path:
        """The folder of its outputs."""
        return self.settings.step_folder(self.name)

    def subjects(self) -> tuple[Subject, ...]:
        """The models that it reads."""
        return ("raw",)

    def reads(self) -> dict[StepName, tuple[str, ...]]:
        """Other steps whose outputs it reads, and the facts that name these."""
        return {}

    def options(self) -> dict[str, Any]:
        """What its table asks for, paths apart, for files are known by their contents."""
        return written(self.table)

    def surroundings(self) -> dict[str, str]:
        """What else its result depends on: files that are named, the machine."""
        return {}

    def check(self, force: bool) -> None:
        """Before the first step runs: packages, machine and places that it will need.

        Args:
            force: edited files of a package may be replaced.

        Raises:
            Error: something is not there.
        """

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:
        """Do the work.

        Args:
            folder: for the outputs; empty.
            progress: called with the work at hand, the steps that are over and the steps in all.
            force: edited files of a package may be replaced.

        Raises:
            Error: it failed and has no result.
        """
        raise NotImplementedError

    def needs(self) -> tuple[StepName, ...]:
        """Steps whose outputs it reads, of those that the pipeline has."""
        makers = (self._maker(subject) for subject in self.subjects())
        return tuple(dict.fromkeys([*(name for name in makers if name), *self.reads()]))

    def inputs(self) -> dict[str, str]:
        """Everything that its result depends on; see ``StepRecord``. What it needs has run."""
        inputs = {"program": program(), **packages(self.packages)}
        for key, value in self.options().items():
            if not isinstance(value, Path):
                inputs[f"option {key}"] = text_of(value)
        inputs |= self.surroundings()
        for subject in self.subjects():
            maker = self._maker(subject)
            if maker is None:
                inputs |= self.settings.files.onnx(self.settings.onnx(subject))
            else:
                inputs |= self._outputs(maker, (MODEL_FILES,))
        for step, facts in self.reads().items():
            inputs |= self._outputs(step, facts)
        return inputs

    def document(self, result: object, folder: Path, *outputs: str) -> str:
        """The JSON document of a result, with what it was made from.

        Args:
            result: of the step.
            folder: where the outputs are until they take their place.
            outputs: files there that the result is about.
        """
        settings = self.settings
        made = provenance(
            [p for s in self.subjects() for p in settings.files.of_model(settings.onnx(s))],
            [
                dataclasses.replace(state, path=os.path.abspath(self.home / name))
                for name in outputs
                for state in provenance((), [folder / name], settings.files.sha256).outputs
            ],
            settings.files.sha256,
        )
        seen = made.seen_from(self.home, settings.document.path.parent)
        return to_json(result, extra={"provenance": seen})

    def _maker(self, subject: Subject) -> StepName | None:
        """The step that makes the raw or the optimized model; None for the file of [model]."""
        if subject == "optimized":
            return "optimize"
        return None if self.settings.export is None else "export"

    def _outputs(self, step: StepName, facts: tuple[str, ...]) -> dict[str, str]:
        """What identifies the outputs of a step that its record names under ``facts``."""
        record = read_record(self.settings.step_folder(step))
        if record is None:
            return {f"step {step}": "has not run"}
        names = {name for fact in facts for name in record.facts.get(fact, ())}
        return {
            f"file {step}/{output.path}": output.sha256
            or f"{output.bytes} B, {output.modified_ns} ns"
            for output in record.outputs
            if output.path in names
        }

    def check_shapes(self, options: BuildOptions | PackageOptions) -> None:
        """Where the pipeline begins with a file, before any work: the shapes fit its inputs.

        Raises:
            UsageError, InputError: they do not, or the file cannot be read.
        """
        if self.settings.model is None or not (options.shapes or options.dims):
            return
        if self.settings.of_graphs:
            open_folder(self.settings.model.path).sizes(options.shapes, options.dims, RANGES)
        else:
            inputs = self.settings.files.facts(self.settings.model.path).inputs
            make_profiles(inputs, options.shapes, options.dims)


def files_in(folder: Path) -> list[str]:
    """Names of the files in the folder of a step, sorted."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

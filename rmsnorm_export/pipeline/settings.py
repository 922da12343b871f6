"""A pipeline file with its gaps filled in and its tables checked against each other.

Nothing here reads a model, imports a runtime or writes: what is wrong is told before any work.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.pipeline.identity import Files
from rmsnorm_export.pipeline.read import Document, place
from rmsnorm_export.pipeline.tables import (
    STEPS,
    Bench,
    Build,
    Export,
    Model,
    Optimize,
    Package,
    Pipeline,
    Prove,
    StepName,
    Subject,
    Verify,
)
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import missing_fix

Pair = tuple[str, str]
PathLike = str | os.PathLike[str]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SIDES = ("pytorch", "raw", "optimized")


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What a pipeline is to do.

    Attributes:
        document: the file that says it.
        name: of the pipeline.
        folder: where everything is written.
        steps: those that there are, in order.
        pairs: that [verify] compares.
        files: what is known of files in this run.
        model, export, optimize, prove, build, verify, bench, package: the tables; None: absent.
    """

    document: Document
    name: str
    folder: Path
    steps: tuple[StepName, ...]
    pairs: tuple[Pair, ...]
    model: Model | None
    export: Export | None
    optimize: Optimize | None
    prove: Prove | None
    build: Build | None
    verify: Verify | None
    bench: Bench | None
    package: Package | None
    files: Files = dataclasses.field(default_factory=Files, init=False)

    def requiring_verified(self) -> Settings:
        """The same, where what could not be run here is a failure.

        Raises:
            UsageError: nothing would be verified.
        """
        if self.verify is None:
            raise self.document.error(
                "verify", "", "nothing would be verified.",
                found="--require-verified, and no [verify]", fix="add [verify]",
            )  # fmt: skip
        changed: dict[str, Any] = {
            name: dataclasses.replace(
                table, options=dataclasses.replace(table.options, require_verified=True)
            )
            for name in ("verify", "package")
            if (table := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **changed)

    def step_folder(self, step: StepName) -> Path:
        """Where the outputs of a step are."""
        return self.folder / step

    @property
    def of_graphs(self) -> bool:
        """Whether the model is a folder of graphs, such as a decoder's."""
        if self.export is not None:
            return self.export.task is not None
        return self.model is not None and os.path.isdir(self.model.path)

    def onnx(self, subject: Subject) -> Path:
        """The file, or the folder of graphs, of the raw or the optimized model."""
        if subject == "raw" and self.model is not None:
            return self.model.path
        step: StepName = "optimize" if subject == "optimized" else "export"
        return self.step_folder(step) / (self.name if self.of_graphs else f"{self.name}.onnx")

    @property
    def engine(self) -> Path:
        """The file that [build] makes, or the folder of engines."""
        return self.step_folder("build") / (self.name if self.of_graphs else f"{self.name}.engine")

    @property
    def newest(self) -> Subject:
        """What a step takes that does not say what."""
        return "raw" if self.optimize is None else "optimized"

    @property
    def built(self) -> Subject:
        """What [build] builds."""
        return (self.build and self.build.model) or self.newest

    @property
    def source(self) -> str:
        """[export] source, absolute where it is a file or folder."""
        assert self.export is not None
        path = self.document.path.parent / self.export.source
        module = ":" in self.export.source and not path.exists()
        return self.export.source if module else os.path.abspath(path)

    @property
    def repository(self) -> Path:
        """Folder of models that [package] writes into."""
        given = None if self.package is None else self.package.repository
        return self.folder / "repository" if given is None else given

    @property
    def model_name(self) -> str:
        """Of the packaged model."""
        return (self.package and self.package.options.name) or self.name


def settle(document: Document) -> Settings:
    """The settings that a file says.

    Raises:
        UsageError: tables that do not go together, naming table and key.
        InputError: a file that a key names is missing.
    """
    tables = document.tables
    pipeline: Pipeline = tables["pipeline"]
    if not _NAME.fullmatch(pipeline.name):
        raise document.error(
            "pipeline", "name", "the name cannot be used.", found=quoted(pipeline.name),
            fix="use letters, digits, _ and -: it is the name of files",
        )  # fmt: skip
    if ("model" in tables) == ("export" in tables):
        both = "model" in tables
        raise document.error(
            "export" if both else "model", "", "a pipeline begins with one thing.",
            found="[model] and [export]" if both else "neither [model] nor [export]",
            fix="keep one of them" if both else '[model] path = "..." or [export] source = "..."',
        )  # fmt: skip
    steps = tuple(step for step in STEPS if step in tables)
    if not steps:
        raise document.error(
            "pipeline", "", "there is nothing to do.", found="[model] alone",
            fix=f"add a table: {', '.join(STEPS[1:])}",
        )  # fmt: skip
    folder = pipeline.folder or document.path.parent / pipeline.name
    settings = Settings(
        document=document, name=pipeline.name, folder=folder, steps=steps, pairs=(),
        **{name: tables.get(name) for name in ("model", *STEPS)},
    )  # fmt: skip
    _check_source(settings)
    _check_graphs(settings)
    if "prove" in tables and "optimize" not in tables:
        raise document.error(
            "prove", "", "there is nothing to prove.", found="no [optimize]", fix="add [optimize]"
        )
    if settings.prove is not None and settings.prove.kernels is not None:
        _must_exist(document, "prove", "kernels", settings.prove.kernels)
    if settings.build is not None:
        _subject(settings, "build", settings.build.model)
    pairs = _pairs(settings)
    _package(settings)
    _check_places(settings)
    return dataclasses.replace(settings, pairs=pairs)


def _check_source(settings: Settings) -> None:
    document = settings.document
    if settings.model is not None:
        _must_exist(document, "model", "path", settings.model.path)
    if settings.export is None:
        return
    for path in settings.export.files:
        _must_exist(document, "export", "files", path)
    source = settings.source
    if os.path.isabs(source):
        _must_exist(document, "export", "source", Path(source))
        if settings.export.load.arguments:
            raise document.error(
                "export", "arguments", "arguments are for a factory.",
                found=f"source = {quoted(settings.export.source)}",
                fix="leave them away, or give module:factory",
            )  # fmt: skip


def _check_graphs(settings: Settings) -> None:
    """What only a folder of graphs has, and what it has not."""
    document, export, verify, bench = (
        settings.document, settings.export, settings.verify, settings.bench
    )  # fmt: skip
    if export is not None and (export.task is None or export.weights != "auto"):
        keys = ("static_cache", "multi_token") if export.task is None else ("weights",)
        for key in keys:
            if getattr(export, key) not in (None, False, "auto"):
                raise document.error(
                    "export", key, "this key is for another task.",
                    found=f"task = {quoted(str(export.task or 'one graph without cache'))}",
                    fix='leave it away, or give task = "generation"'
                    if export.task is None else "leave it away: a folder has a file of weights",
                )  # fmt: skip
    wrong: tuple[tuple[str, str, bool], ...]
    if not settings.of_graphs:
        what, fix = (
            "it is for a folder of graphs.",
            'leave it away, or [export] task = "generation"',
        )
        wrong = (
            ("verify", "generate", bool(verify and verify.options.generate)),
            ("bench", "generate", bool(bench and bench.options.generate)),
        )
    else:
        what, fix = "it is for a single graph.", "leave it away"
        package = settings.package
        wrong = (
            ("bench", "png", bool(bench and bench.png)),
            ("package", "model", bool(package and package.model == "engine")),
            ("verify", "engine", bool(verify and verify.engine == "require")),
        )
    for table, key, given in wrong:
        if given:
            shown = "a folder of graphs" if settings.of_graphs else "a single graph"
            raise document.error(table, key, what, found=shown, fix=fix)


def _must_exist(document: Document, table: str, key: str, path: PathLike) -> None:
    if not os.path.exists(path):
        raise InputError(
            f"{place(document, table, key)}: the file does not exist.",
            found=short(str(path), 300),
            fix=f"{missing_fix(path)}; it is relative to the pipeline file",
        )


def _subject(settings: Settings, table: str, model: str | None) -> None:
    needs = {"optimized": "optimize", "engine": "build"}.get(model or "")
    if needs is not None and needs not in settings.steps:
        raise settings.document.error(
            table, "model", "it needs a step that there is not.",
            found=f"model = {quoted(model or '')}, and no [{needs}]",
            fix=f"add [{needs}], or take another model",
        )  # fmt: skip


def _pairs(settings: Settings) -> tuple[Pair, ...]:
    """Check [verify]; what it compares."""
    verify, document = settings.verify, settings.document
    if verify is None:
        return ()
    if verify.inputs_file is not None:
        _must_exist(document, "verify", "inputs", verify.inputs_file)
    if verify.engine == "require" and settings.build is None:
        raise document.error(
            "verify", "engine", "there is no engine.", found="no [build]", fix="add [build]"
        )
    reference = settings.export is not None and settings.export.reference
    if verify.pairs is None:
        pairs: list[Pair] = [("raw", "optimized")] if settings.optimize is not None else []
        pairs += [("pytorch", settings.newest)] if reference else []
        if not pairs and (settings.build is None or verify.engine == "never"):
            raise document.error(
                "verify", "", "there is nothing to compare.", found="one model",
                fix="add [optimize], or [build] for an engine",
            )  # fmt: skip
        return tuple(pairs)
    for pair in verify.pairs:
        _check_pair(settings, pair, reference=reference)
    return tuple((pair[0], pair[1]) for pair in dict.fromkeys(verify.pairs))


def _check_pair(settings: Settings, pair: tuple[str, ...], *, reference: bool) -> None:
    shown = f"[{', '.join(quoted(side) for side in pair)}]"
    problem = ""
    if (
        len(pair) != 2
        or not set(pair) <= set(_SIDES)
        or len(set(pair)) != 2
        or pair[1] == _SIDES[0]
    ):
        problem = "this is no pair."
        fix = f"name two of {', '.join(_SIDES)}, the reference first; pytorch is a reference"
    elif "pytorch" in pair and not reference:
        problem = "there are no results of PyTorch."
        fix = "add [export], with reference = true"
    elif "optimized" in pair and settings.optimize is None:
        problem, fix = "there is no optimized model.", "add [optimize]"
    if problem:
        raise settings.document.error("verify", "pairs", problem, found=shown, fix=fix)


def _package(settings: Settings) -> None:
    package, document = settings.package, settings.document
    if package is None:
        return
    _subject(settings, "package", package.model)
    if package.options.name is not None and not _NAME.fullmatch(package.options.name):
        raise document.error(
            "package", "name", "the name cannot be used.", found=quoted(package.options.name),
            fix="use letters, digits, _ and -: it is a folder and a part of a URL",
        )  # fmt: skip
    engine = package.model == "engine"
    if engine and settings.build is not None and settings.build.options.backend == "tensorrt-rtx":
        raise document.error(
            "package", "model", "Triton's TensorRT backend does not run an engine of TensorRT-RTX.",
            found='[build] backend = "tensorrt-rtx"',
            fix='give [build] backend = "tensorrt", or package the ONNX model',
        )  # fmt: skip
    if engine and (package.options.shapes or package.options.dims):
        raise document.error(
            "package", "shapes", "an engine has its own shapes.",
            found="shapes or dims and an engine", fix="leave them away",
        )  # fmt: skip
    if package.options.plugin is not None:
        _must_exist(document, "package", "plugin_library", package.options.plugin)


def _check_places(settings: Settings) -> None:
    """Nothing is written where another thing is, or where the inputs are."""
    document, folder = settings.document, settings.folder
    if _within(document.path, folder):
        raise document.error(
            "pipeline", "folder", "the pipeline file itself is in this folder.",
            found=short(str(folder), 300), fix="give a folder of its own",
        )  # fmt: skip
    inputs = (
        ("model", "path", settings.model.path if settings.model else None),
        ("verify", "inputs", settings.verify.inputs_file if settings.verify else None),
    )
    for table, key, path in inputs:
        if path is not None and (_within(path, folder) or _within(folder, path)):
            raise document.error(
                table, key, "an input and the folder that the pipeline writes are in each other.",
                found=short(str(path), 300), fix="put it elsewhere",
            )  # fmt: skip
    cache = settings.build.options.timing_cache if settings.build else None
    taken = [folder / step for step in STEPS]
    outputs: tuple[tuple[str, str, PathLike | None], ...] = (
        ("package", "repository", settings.repository if settings.package else None),
        ("build", "timing_cache", cache),
    )
    for table, key, output in outputs:
        if output is None:
            continue
        inside = any(_within(output, place_) for place_ in taken)
        if inside or _within(folder, output) or cache == output == settings.repository:
            raise document.error(
                table, key, "it would be written where another step writes.",
                found=short(str(output), 300), fix="give it a place of its own",
            )  # fmt: skip


def _within(path: PathLike, folder: PathLike) -> bool:
    """Whether ``path`` is ``folder`` or below it, links followed."""
    real, outer = os.path.realpath(path), os.path.realpath(folder)
    return real == outer or real.startswith(outer + os.sep)

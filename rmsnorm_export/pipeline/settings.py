"""A pipeline file with its gaps filled in and its tables checked against each other.

Nothing here reads a model, imports a runtime or writes: what is wrong is told before any work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.benchmark.options import check_options
from rmsnorm_export.benchmark.shapes import POINTS
from rmsnorm_export.errors import InputError, UsageError
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
from rmsnorm_export.runtime.sizes import read
from rmsnorm_export.serving.kserve import KServe
from rmsnorm_export.tensorrt.engine.shapes import RANGES

Pair = tuple[str, str]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SIZE = re.compile(r"(\d{1,15})\s*(KiB|MiB|GiB|B)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
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
        memory_limit: of [build], in bytes.
        model, export, optimize, prove, build, verify, bench, package: the tables; None: absent.
    """

    document: Document
    name: str
    folder: Path
    steps: tuple[StepName, ...]
    pairs: tuple[Pair, ...]
    memory_limit: int | None
    model: Model | None
    export: Export | None
    optimize: Optimize | None
    prove: Prove | None
    build: Build | None
    verify: Verify | None
    bench: Bench | None
    package: Package | None

    def step_folder(self, step: StepName) -> Path:
        """Where the outputs of a step are."""
        return self.folder / step

    def onnx(self, subject: Subject) -> Path:
        """The file of the raw or the optimized model."""
        if subject == "optimized":
            return self.step_folder("optimize") / f"{self.name}.onnx"
        if self.model is not None:
            return self.model.path
        return self.step_folder("export") / f"{self.name}.onnx"

    @property
    def engine(self) -> Path:
        """The file that [build] makes."""
        return self.step_folder("build") / f"{self.name}.engine"

    @property
    def newest(self) -> Subject:
        """What a step takes that does not say what."""
        return "raw" if self.optimize is None else "optimized"

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
        return (self.package and self.package.name) or self.name

    @property
    def kserve(self) -> KServe | None:
        """The manifest of [package]; None without one."""
        options = self.package
        if options is None or options.kserve is None:
            return None
        low, high = options.kserve_replicas or (1, 1)
        return KServe(
            options.kserve,
            options.kserve_name,
            options.kserve_namespace,
            options.kserve_cpu or "4",
            options.kserve_memory or "16Gi",
            options.kserve_gpus,
            low,
            high,
        )


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
        memory_limit=None, model=None, **{step: tables.get(step) for step in STEPS},
    )  # fmt: skip
    settings = dataclasses.replace(settings, model=tables.get("model"))
    _check_source(settings)
    if "prove" in tables and "optimize" not in tables:
        raise document.error(
            "prove", "", "there is nothing to prove.", found="no [optimize]", fix="add [optimize]"
        )
    memory_limit = _build(settings)
    pairs = _pairs(settings)
    _bench(settings)
    _package(settings)
    _check_places(settings)
    return dataclasses.replace(settings, memory_limit=memory_limit, pairs=pairs)


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
        if settings.export.arguments:
            raise document.error(
                "export", "arguments", "arguments are for a factory.",
                found=f"source = {quoted(settings.export.source)}",
                fix="leave them away, or give module:factory",
            )  # fmt: skip


def _must_exist(document: Document, table: str, key: str, path: Path) -> None:
    if not path.exists():
        raise InputError(
            f"{place(document, table, key)}: the file does not exist.",
            found=short(str(path), 300),
            fix="check the path; it is relative to the pipeline file",
        )


def _subject(settings: Settings, table: str, model: str | None) -> None:
    needs = {"optimized": "optimize", "engine": "build"}.get(model or "")
    if needs is not None and needs not in settings.steps:
        raise settings.document.error(
            table, "model", "it needs a step that there is not.",
            found=f"model = {quoted(model or '')}, and no [{needs}]",
            fix=f"add [{needs}], or take another model",
        )  # fmt: skip


@contextlib.contextmanager
def _naming(document: Document, table: str, key: str = "") -> Iterator[None]:
    """Usage errors in the block say which table they are about."""
    try:
        yield
    except UsageError as error:
        what = f"{place(document, table, key)}: {error.what[:1].lower()}{error.what[1:]}"
        raise UsageError(what, found=error.found, fix=error.fix) from error


def _build(settings: Settings) -> int | None:
    """Check [build]; the memory limit in bytes."""
    build = settings.build
    if build is None:
        return None
    _subject(settings, "build", build.model)
    with _naming(settings.document, "build", "shapes"):
        for text in (build.shapes,) if isinstance(build.shapes, str) else build.shapes or ():
            read(text, None, RANGES)
    if not isinstance(build.memory_limit, str):
        return build.memory_limit
    found = _SIZE.fullmatch(build.memory_limit.strip())
    if found is None or int(found[1]) == 0:
        raise settings.document.error(
            "build", "memory_limit", "this is no number of bytes.",
            found=quoted(build.memory_limit), fix='write e.g. "4GiB" or "512MiB"',
        )  # fmt: skip
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def _pairs(settings: Settings) -> tuple[Pair, ...]:
    """Check [verify]; what it compares."""
    verify, document = settings.verify, settings.document
    if verify is None:
        return ()
    if verify.inputs is not None:
        _must_exist(document, "verify", "inputs", verify.inputs)
        if verify.shapes:
            raise document.error(
                "verify", "shapes", "shapes are for random inputs.", found="inputs and shapes",
                fix="leave one of them away",
            )  # fmt: skip
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


def _bench(settings: Settings) -> None:
    bench = settings.bench
    if bench is None:
        return
    with _naming(settings.document, "bench"):
        check_options(
            bench.targets, bench.peers, bench.numerics or "reordered", bench.seconds, bench.rounds,
            bench.threads, bench.peer_seconds,
        )  # fmt: skip
    if bench.shapes is not None:
        with _naming(settings.document, "bench", "shapes"):
            read(bench.shapes, None, POINTS)


def _package(settings: Settings) -> None:
    package, document = settings.package, settings.document
    if package is None:
        return
    _subject(settings, "package", package.model)
    if package.name is not None and not _NAME.fullmatch(package.name):
        raise document.error(
            "package", "name", "the name cannot be used.", found=quoted(package.name),
            fix="use letters, digits, _ and -: it is a folder and a part of a URL",
        )  # fmt: skip
    engine = package.model == "engine"
    if engine and settings.build is not None and settings.build.backend == "tensorrt-rtx":
        raise document.error(
            "package", "model", "Triton's TensorRT backend does not run an engine of TensorRT-RTX.",
            found='[build] backend = "tensorrt-rtx"',
            fix='give [build] backend = "tensorrt", or package the ONNX model',
        )  # fmt: skip
    if package.shapes is not None:
        with _naming(document, "package", "shapes"):
            if engine:
                raise UsageError(
                    "An engine has its own shapes.", found="shapes and an engine",
                    fix="leave shapes away",
                )  # fmt: skip
            read(package.shapes, None, RANGES)
    if package.plugin_library is not None:
        _must_exist(document, "package", "plugin_library", package.plugin_library)
    alone = [
        key
        for key in ("name", "namespace", "cpu", "memory", "gpus", "replicas")
        if getattr(package, f"kserve_{key}") is not None
    ]
    if alone and package.kserve is None:
        raise document.error(
            "package", f"kserve_{alone[0]}", "the manifest needs the place of the repository.",
            found="no key kserve", fix='add kserve = "URI", e.g. "pvc://claim/models"',
        )  # fmt: skip
    if package.kserve_replicas is not None and len(package.kserve_replicas) != 2:
        raise document.error(
            "package", "kserve_replicas", "this is no range.",
            found=f"{len(package.kserve_replicas)} numbers", fix="give the least and the most",
        )  # fmt: skip


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
        ("verify", "inputs", settings.verify.inputs if settings.verify else None),
    )
    for table, key, path in inputs:
        if path is not None and _within(path, folder):
            raise document.error(
                table, key, "an input is in the folder that the pipeline writes.",
                found=short(str(path), 300), fix="put it elsewhere",
            )  # fmt: skip
    cache = settings.build.timing_cache if settings.build else None
    taken = [folder / step for step in STEPS]
    outputs = (
        ("package", "repository", settings.repository if settings.package else None),
        ("build", "timing_cache", cache),
    )
    for table, key, path in outputs:
        if path is None:
            continue
        inside = any(_within(path, place_) for place_ in taken)
        if inside or _within(folder, path) or (cache == path and settings.repository == path):
            raise document.error(
                table, key, "it would be written where another step writes.",
                found=short(str(path), 300), fix="give it a place of its own",
            )  # fmt: skip


def _within(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or below it, links followed."""
    real, outer = os.path.realpath(path), os.path.realpath(folder)
    return real == outer or real.startswith(outer + os.sep)

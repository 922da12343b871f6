"""A pipeline file with its gaps filled in and its tables checked against each other.

Nothing here reads a model, imports a runtime or writes: what is wrong is told before any work.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.deploy.tables import (
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
    Verify,
)
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import written
from rmsnorm_export.printable import quoted, short

Subject = Literal["raw", "optimized", "newest", "engine", "report"]
"""``raw``: as exported, or the file of [model]; ``optimized``: what [optimize] made of it, and
``report`` what it says; ``newest``: the last of both; ``engine``: of [build]."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_WRITTEN = ("folder", "repository", "timing_cache")
"""Keys whose paths need not be there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline is to do: the file that says it, and its tables; None: absent."""

    path: Path
    pipeline: Pipeline
    model: Model | None = None
    export: Export | None = None
    optimize: Optimize | None = None
    prove: Prove | None = None
    build: Build | None = None
    verify: Verify | None = None
    bench: Bench | None = None
    package: Package | None = None

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self.pipeline.name

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return self.pipeline.folder or self.path.parent / self.name

    @property
    def steps(self) -> tuple[StepName, ...]:
        """Those that there are, in order."""
        return tuple(step for step in STEPS if getattr(self, step) is not None)

    @property
    def of_graphs(self) -> bool:
        """The model is a folder of graphs, such as a decoder's."""
        if self.export is not None:
            return self.export.task is not None
        return self.model is not None and self.model.path.is_dir()

    def place(self, subject: Subject) -> Path:
        """Return the file, or the folder of graphs or engines."""
        if subject == "newest":
            subject = "raw" if self.optimize is None else "optimized"
        if subject == "raw" and self.model is not None:
            return self.model.path
        if subject == "report":
            return self.folder / "optimize" / "report.json"
        step = {"raw": "export", "optimized": "optimize", "engine": "build"}[subject]
        suffix = "" if self.of_graphs else ".engine" if subject == "engine" else ".onnx"
        return self.folder / step / f"{self.name}{suffix}"

    @property
    def repository(self) -> Path:
        """Folder of models that [package] writes into."""
        given = None if self.package is None else self.package.repository
        return given or self.folder / "repository"

    @property
    def source(self) -> str:
        """[export] source, absolute where it is a file or folder."""
        source = self.export.source if self.export is not None else ""
        path = self.path.parent / source
        return source if ":" in source and not path.exists() else os.path.abspath(path)

    def paths(self, step: str) -> dict[str, list[Path]]:
        """Return the files to be read that a table names, by its keys."""
        named = {}
        for key, value in written(getattr(self, step)).items():
            many = value if isinstance(value, tuple) else (value,)
            paths = [path for path in many if isinstance(path, Path)]
            if paths and key not in _WRITTEN:
                named[key] = paths
        if step == "export" and os.path.isabs(self.source):
            named["source"] = [Path(self.source)]
        return named


def settle(path: Path, tables: dict[str, Any]) -> Settings:
    """Return the settings that a file says.

    Raises:
        UsageError: tables that do not go together, naming table and key.
        InputError: a file that a key names is missing.
    """
    settings, inside = Settings(path=path, **tables), f"In {short(path.name)},"
    for where, wrong, found, fix in _problems(settings):
        if wrong:
            raise UsageError(f"{inside} {where}: this cannot be run.", found=found, fix=fix)
    for table in filter(lambda name: getattr(settings, name) is not None, tables):
        for key, files in settings.paths(table).items():
            for file in files:
                where, found = f"{inside} [{table}] {key}", short(str(file), 300)
                if not file.exists():
                    fix = "check the path; it is relative to the pipeline file"
                    raise InputError(f"{where}: the file does not exist.", found=found, fix=fix)
                if _within(file, settings.folder):
                    fix = "put it elsewhere, or give another [pipeline] folder"
                    what = f"{where}: an input is in the pipeline's folder."
                    raise UsageError(what, found=found, fix=fix)
    return settings


def _problems(s: Settings) -> Iterator[tuple[str, object, str, str]]:
    """Yield what may be wrong: where, whether it is, what was found and how to mend it."""
    names = "use letters, digits, _ and -: it is the name of files"
    yield "[pipeline] name", not _NAME.fullmatch(s.name), quoted(s.name), names
    both = (s.model is None) == (s.export is None)
    yield "[model] or [export]", both, "neither or both", "keep one of them"
    yield "[prove]", s.prove and not s.optimize, "no [optimize]", "add [optimize]"
    yield "steps", not s.steps, "[model] alone", f"add a table: {', '.join(STEPS[1:])}"
    nothing = s.verify and not s.optimize and not s.build
    yield "[verify]", nothing, "nothing to compare", "add [optimize] or [build]"
    required = s.verify and s.verify.engine == "require" and not s.build
    yield "[verify] engine", required, "no [build]", "add [build]"
    if s.package and s.package.model == "engine":
        yield "[package] model", s.of_graphs, "a folder of graphs", "omit it"
        yield "[package] model", not s.build, "no [build]", "add [build]"
        rtx = s.build and s.build.options.backend == "tensorrt-rtx"
        yield "[package] model", rtx, "Triton does not run it", 'give [build] backend = "tensorrt"'


def _within(path: str | os.PathLike[str], folder: Path) -> bool:
    """Tell whether ``path`` is ``folder`` or below it, links followed."""
    real, outer = os.path.realpath(path), os.path.realpath(folder)
    return real == outer or real.startswith(outer + os.sep)

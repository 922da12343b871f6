"""The pipeline file: its tables, and how it is read and checked.

A key is called as the option of the command, with underscores. A step runs when its table is there.
Nothing here reads a model, imports a runtime or writes: errors come before any work.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec.toml

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.deploy.options import NAME, PackageOptions
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import (
    REQUIRED,
    Bound,
    Count,
    OptionError,
    Options,
    Seed,
    entries,
    option,
    written,
)
from rmsnorm_export.printable import did_you_mean, one_line, quoted, short
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.result import PluginUse
from rmsnorm_export.torch_options import SourceOptions

StepName = Literal["export", "optimize", "build", "verify", "bench", "package"]
STEPS: tuple[StepName, ...] = ("export", "optimize", "build", "verify", "bench", "package")
"""In the order in which they run."""

Subject = Literal["raw", "optimized", "newest", "engine"]
"""``raw``: as exported, or the file of [model]; ``optimized``: what [optimize] made of it;
``newest``: the last of both; ``engine``: of [build]."""

_WRITTEN = ("folder", "repository")
"""Keys whose paths need not be there."""


LARGEST = 1 << 20
"""Bytes of a pipeline file."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Options):
    """[pipeline]: what its files are called, and where they are."""

    name: str = option(REQUIRED, help="Name of the files and of the packaged model.")
    folder: Path | None = option(None, help="Folder for all that is written, else the name.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model(Options):
    """[model]: what to begin with, where nothing is exported."""

    path: Path = option(REQUIRED, help="An ONNX file, or a folder of graphs such as a decoder's.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Export(SourceOptions):
    """[export]: a PyTorch module to begin with; see ``rmsnorm-export export``.

    Modules are looked for beside the pipeline file first.
    """

    source: str = option(
        REQUIRED, help="A Hugging Face folder, .pt2 file, module:factory or file.py:factory."
    )
    task: Literal["generation"] | None = option(None, help="Export a decoder with its cache.")
    static_cache: Count | None = option(None, help="Tokens of a cache of fixed size.")
    multi_token: bool = option(False, help="Write one graph instead of prefill and decode.")
    opset: Count | None = option(None, help="Opset of the file, 18 to 24.", shown="PyTorch's")
    seed: Seed = option(0, help="Of the random inputs of the comparison.")
    verify: bool = option(True, help="Compare the file with PyTorch.")
    rtol: Bound | None = option(None, help="Bound of the comparison, as [verify] has it.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(OptimizeOptions):
    """[optimize]: see ``rmsnorm-export optimize``; a proof that fails is exit code 4."""

    require: Literal["all"] | Count | None = dataclasses.field(
        default=None, metadata=dataclasses.fields(Requirement)[0].metadata
    )
    weights: Literal["auto", "copy", "embed"] = option("auto", help="Place of the weights.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verify(VerifyOptions):
    """[verify]: the optimized model against the one before; see ``rmsnorm-export verify``."""

    engine: PluginUse = option("auto", help="Compare the engine of [build], too, on a GPU.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Package(PackageOptions):
    """[package]: a repository of models for Triton; see ``rmsnorm-export package``."""

    model: Literal["onnx", "engine"] = option("onnx", help="The newest model, or that of [build].")
    repository: Path | None = option(None, help="Folder of the repository.", shown="[pipeline]'s")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A pipeline file and its tables; None: absent."""

    path: Path
    pipeline: Pipeline
    model: Model | None = None
    export: Export | None = None
    optimize: Optimize | None = None
    build: BuildOptions | None = None
    verify: Verify | None = None
    bench: BenchOptions | None = None
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
        step = {"raw": "export", "optimized": "optimize", "engine": "build"}[subject]
        suffix = "" if self.of_graphs else ".engine" if subject == "engine" else ".onnx"
        return self.folder / step / f"{self.name}{suffix}"

    @property
    def repository(self) -> Path:
        """Folder of models that [package] writes into."""
        named = None if self.package is None else self.package.repository
        return named or self.folder / "repository"

    @property
    def source(self) -> str:
        """[export] source, absolute where it is a file or folder."""
        source = self.export.source if self.export is not None else ""
        file, _, factory = source.rpartition(":")
        if file.endswith(".py"):  # beside the pipeline file, wherever the command runs
            return f"{os.path.abspath(self.path.parent / file)}:{factory}"
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
            file, _, factory = self.source.rpartition(":")
            named["source"] = [Path(file if factory and file.endswith(".py") else self.source)]
        return named


TABLES: dict[str, Any] = {
    name: next(iter(get_args(kind)), kind)
    for name, kind in get_type_hints(Settings).items()
    if name != "path"
}
"""The class of each table, by its name."""


def read_settings(path: Path) -> Settings:
    """Return the settings that a file says.

    Raises:
        InputError: the file, or one that a key names, cannot be read, or is no TOML.
        UsageError: a table or key that there is not, a value that cannot be used, a key that is
            missing, or tables that do not go together.
    """
    inside, tables = f"In {short(path.name)}", read_tables(path)
    settings = Settings(path=path, **tables)
    for where, wrong, found, fix in _problems(settings):
        if wrong:
            raise UsageError(f"{inside}, {where}: this cannot be run.", found=found, fix=fix)
    for table in tables:
        for key, files in settings.paths(table).items():
            for file in files:
                _check_input(f"{inside}, [{table}] {key}", file, settings.folder)
    return settings


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file by name, as records; raises as ``read_settings``."""
    inside, tables = f"In {short(path.name)}", {}
    for name, values in {"pipeline": {}, **_parsed(path)}.items():
        if name not in TABLES or not isinstance(values, dict):
            fix = f"{did_you_mean(name, TABLES)}the tables are [{'], ['.join(TABLES)}]"
            raise UsageError(f"{inside}: there is no such table.", found=short(name), fix=fix)
        tables[name] = _record(f"{inside}, [{name}]", TABLES[name], values, path.parent)
    return tables


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.toml.decode(read_file(path, LARGEST)))
    except OSError as error:
        problem, fix = error.strerror or str(error), "check the path"
    except (ValueError, RecursionError) as error:  # DecodeError is a ValueError
        problem, fix = one_line(str(error), 300), "correct it there; strings need quotes"
        if path.suffix != ".toml":
            fix = "give a pipeline file: rmsnorm-export deploy --init pipeline.toml writes one"
    found = f"{short(str(path), 300)}: {problem}"
    raise InputError("The pipeline file cannot be read.", found=found, fix=fix)


def _record(where: str, table: Any, values: dict[str, Any], folder: Path) -> Any:
    """Make a record from a table; paths are relative to ``folder``, wherever the command runs."""
    known = {entry.key: entry for entry in entries(table) if entry.facts.toml}
    needed = [key for key, entry in known.items() if entry.default is REQUIRED]
    for key in (*values, *needed):
        if key not in known or key not in values:
            problem = "there is no such key" if key in values else "the key is missing"
            hint = did_you_mean(key, known) if key in values else ""
            fix = f"{hint}the keys are {', '.join(known)}"
            found = f"the keys {short(', '.join(values)) or 'none'}"
            raise UsageError(f"{where} {short(key)}: {problem}.", found=found, fix=fix)
    absolute = {k: _absolute(v, folder) if known[k].is_path else v for k, v in values.items()}
    try:
        return table(**{known[key].name: value for key, value in absolute.items()})
    except UsageError as error:
        key = f" {error.entry.key}" if isinstance(error, OptionError) else ""
        raise error.at(f"{where}{key}") from error


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    return Path(os.path.abspath(folder / value)) if isinstance(value, str) and value else value


def _problems(s: Settings) -> Iterator[tuple[str, object, str, str]]:
    """Yield what may be wrong: where, whether it is, what was found and how to fix it."""
    names = "use letters, digits, _ and -: it is the name of files"
    yield "[pipeline] name", not NAME.fullmatch(s.name), quoted(s.name), names
    both = (s.model is None) == (s.export is None)
    yield "[model] or [export]", both, "neither or both", "keep one of them"
    yield "steps", not s.steps, "[model] alone", f"add a table: {', '.join(STEPS[1:])}"
    cache = s.export and not s.export.task and (s.export.static_cache or s.export.multi_token)
    yield "[export]", cache, "keys of a decoder's cache", 'add task = "generation", or omit them'
    nothing = s.verify and not s.optimize and not s.build
    yield "[verify]", nothing, "nothing to compare", "add [optimize] or [build]"
    required = s.verify and s.verify.engine == "require" and not s.build
    yield "[verify] engine", required, "no [build]", "add [build]"
    if s.package and s.package.model == "engine":
        yield "[package] model", s.of_graphs, "a folder of graphs", "omit it"
        yield "[package] model", not s.build, "no [build]", "add [build]"
        rtx = s.build and s.build.backend == "tensorrt-rtx"
        yield "[package] model", rtx, "Triton does not run it", 'give [build] backend = "tensorrt"'


def _check_input(where: str, file: Path, folder: Path) -> None:
    found = short(str(file), 300)
    if not file.exists():
        fix = "check the path; it is relative to the pipeline file"
        raise InputError(f"{where}: the file does not exist.", found=found, fix=fix)
    if Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        fix = "put it elsewhere, or give another [pipeline] folder"
        raise UsageError(f"{where}: an input is in the pipeline's folder.", found=found, fix=fix)

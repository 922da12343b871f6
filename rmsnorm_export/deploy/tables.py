"""The tables of a pipeline file: the options of the commands, and the keys that only a file has.

A key is called as the option of the command, with underscores. A step runs when its table is there.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.options import REQUIRED, Bound, Count, Options, Seed, flat, option, written
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement
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
class Export(Options):
    """[export]: a PyTorch module to begin with; see ``rmsnorm-export export``.

    Modules are looked for beside the pipeline file first.
    """

    source: str = option(REQUIRED, help="A Hugging Face folder, .pt2 file or module:factory.")
    task: Literal["generation"] | None = option(None, help="Export a decoder with its cache.")
    static_cache: Count | None = option(None, help="Tokens of a cache of fixed size.")
    multi_token: bool = option(False, help="Write one graph instead of prefill and decode.")
    load: SourceOptions = flat(SourceOptions)
    opset: Count | None = option(None, help="Opset of the file, 18 to 24.", shown="PyTorch's")
    seed: Seed = option(0, help="Of the random inputs of the comparison.")
    verify: bool = option(True, help="Compare the file with PyTorch.")
    rtol: Bound | None = option(None, help="Bound of the comparison, as [verify] has it.")
    files: tuple[Path, ...] = option((), help="Files that the source reads, too.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Options):
    """[optimize]: see ``rmsnorm-export optimize``; a proof that fails is exit code 4."""

    options: OptimizeOptions = flat(OptimizeOptions)
    requirement: Requirement = flat(Requirement)
    weights: Literal["auto", "copy", "embed"] = option("auto", help="Place of the weights.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Options):
    """[verify]: the optimized model against the one before; see ``rmsnorm-export verify``."""

    options: VerifyOptions = flat(VerifyOptions)
    engine: PluginUse = option("auto", help="Compare the engine of [build], too, where a GPU is.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Package(Options):
    """[package]: a repository of models for Triton; see ``rmsnorm-export package``."""

    model: Literal["onnx", "engine"] = option("onnx", help="The newest model, or that of [build].")
    repository: Path | None = option(None, help="Folder of the repository.", shown="[pipeline]'s")
    options: PackageOptions = flat(PackageOptions)


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


TABLES: dict[str, Any] = {
    name: next(iter(get_args(kind)), kind)
    for name, kind in get_type_hints(Settings).items()
    if name != "path"
}
"""The class of each table, by its name."""

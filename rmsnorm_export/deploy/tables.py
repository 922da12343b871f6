"""The tables of a pipeline file: the options of the commands, and the keys that only a file has.

A key is called as the option of the command, with underscores.
"""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import (
    REQUIRED,
    Bound,
    Count,
    Options,
    Seed,
    expected,
    flat,
    option,
    spread,
)
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement
from rmsnorm_export.system.files import StrPath, refusals_as, write_whole
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.torch_options import SourceOptions

StepName = Literal["export", "optimize", "build", "verify", "bench", "package"]
STEPS: tuple[StepName, ...] = ("export", "optimize", "build", "verify", "bench", "package")
"""In the order in which they run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Options):
    """[pipeline]: what it is called and where it writes."""

    name: str = option(REQUIRED, help="Of its files, and of the packaged model.")
    folder: Path | None = option(
        None, help="For everything that is written.", shown="the name, beside the pipeline file"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model(Options):
    """[model]: an ONNX file to begin with, or a folder of graphs such as a decoder's."""

    path: Path = option(REQUIRED, help="Of the file or folder.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Export(Options):
    """[export]: a PyTorch module to begin with; see ``rmsnorm-export export``."""

    source: str = option(
        REQUIRED,
        help="module:factory, a folder, a config.json or a .pt2 file. Modules are looked for "
        "beside the pipeline file first.",
    )
    task: Literal["generation"] | None = option(
        None, help="generation: a decoder with its cache, as a folder of graphs."
    )
    static_cache: Count | None = option(
        None, help="With task: a cache of fixed size for so many tokens."
    )
    multi_token: bool = option(False, help="With task: one graph for prefill and decode.")
    load: SourceOptions = flat(SourceOptions)
    opset: Count | None = option(None, help="Of the file.")
    seed: Seed = option(0, help="Of the example inputs.")
    verify: bool = option(True, help="Compare what was exported with PyTorch.")
    rtol: Bound | None = option(None, cli=False, help="Bound of that, as of verify.")
    files: tuple[Path, ...] = option(
        (), help="What else the source reads: the export runs again when one changes."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Options):
    """[optimize]: see ``rmsnorm-export optimize``."""

    options: OptimizeOptions = flat(OptimizeOptions)
    requirement: Requirement = flat(Requirement)
    weights: Literal["auto", "copy", "embed"] = option(
        "auto", help="What happens to weights in external files."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Options):
    """[prove]: [optimize] proves every rewrite, as with ``--prove``; a failure is exit code 4."""

    seed: Seed = option(0, help="Of the random inputs.")
    kernels: Path | None = option(None, help="A library, as of ``optimize --kernels``.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Build(Options):
    """[build]: an engine of the newest model; see ``rmsnorm-export build``."""

    options: BuildOptions = flat(BuildOptions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Options):
    """[verify]: the optimized model against the one before; see ``rmsnorm-export verify``."""

    options: VerifyOptions = flat(VerifyOptions)
    engine: Literal["auto", "require", "never"] = option(
        "auto",
        help="The engine of [build] against its model. auto: where a GPU is, else it is said that "
        "it was not; require: or fail; never.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Options):
    """[bench]: the raw model against its targets; see ``rmsnorm-export bench``."""

    options: BenchOptions = flat(BenchOptions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Package(Options):
    """[package]: a Triton model repository; see ``rmsnorm-export package``."""

    model: Literal["onnx", "engine"] = option(
        "onnx", help="The newest ONNX model, or the engine of [build]."
    )
    repository: Path | None = option(
        None, help="Folder of models.", shown="repository in the pipeline's folder"
    )
    options: PackageOptions = flat(PackageOptions)


TABLES: dict[str, Any] = {
    "pipeline": Pipeline,
    "model": Model,
    "export": Export,
    "optimize": Optimize,
    "prove": Prove,
    "build": Build,
    "verify": Verify,
    "bench": Bench,
    "package": Package,
}
_BEGUN = {"model": ['path = "model.onnx"'], "optimize": ['require = "all"'], "prove": []}


def begin(path: StrPath, *, force: bool = False) -> None:
    """Write a pipeline file to begin with, which optimizes and proves a model.

    Every other table and key is in it, too, commented out, with its type, its default and what it
    is for.

    Raises:
        UsageError: the file exists, and ``force`` is False.
        InputError: it cannot be written.
    """
    place = Path(path)
    if place.exists() and not force:
        fix = "use --force to replace it"
        raise UsageError("The pipeline file exists.", found=str(path), fix=fix)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", place.stem).strip("-_") or "model"
    fix = "check the folder and its permissions"
    with refusals_as("The pipeline file cannot be written.", place, fix=fix):
        write_whole(place, _begun_file(name), replace=force)


def _begun_file(name: str) -> str:
    begun = {"pipeline": [f"name = {json.dumps(name)}"], **_BEGUN}
    lines = [
        "# [model] or [export] is needed; a step runs when its table is there. Paths are relative",
        "# to this file. rmsnorm-export deploy THIS.toml runs it.",
    ]
    for title, table in TABLES.items():
        lines += ["", f"[{title}]" if title in begun else f"# [{title}]", *begun.get(title, ())]
        for entry in spread(table):
            if entry.facts.toml:
                lines += [f"#   {line}" for line in textwrap.wrap(entry.facts.help, 94)]
                default = entry.facts.shown or (
                    "" if entry.default in (None, ()) else entry.default
                )
                end = "; required" if entry.default is REQUIRED else f"; default: {default}"
                what = expected(entry.written)
                lines.append(f"# {entry.key}: {what}{end if default or 'req' in end else ''}")
    return "\n".join([*lines, ""])

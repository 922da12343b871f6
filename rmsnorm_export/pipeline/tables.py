"""The tables of a pipeline file: the options of the commands, and the keys that only a file has.

A key is called as the option of the command, with underscores.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.options import (
    REQUIRED,
    Count,
    Options,
    Seed,
    expected,
    flat,
    option,
    spread,
)
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement, SourceOptions
from rmsnorm_export.serving.options import ManifestOptions, PackageOptions
from rmsnorm_export.tensorrt.engine.options import BuildOptions

StepName = Literal["export", "optimize", "prove", "build", "verify", "bench", "package"]
STEPS: tuple[StepName, ...] = (
    "export", "optimize", "prove", "build", "verify", "bench", "package",
)  # fmt: skip
"""In the order in which they run."""

Subject = Literal["raw", "optimized"]
"""``raw``: as exported, or the file of [model]; ``optimized``: what [optimize] made of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Options):
    """[pipeline]: what it is called and where it writes."""

    name: str = option(REQUIRED, help="Of its files, and of the packaged model.")
    folder: Path | None = option(
        None,
        help="For everything that is written.",
        shown="the name, beside the pipeline file",
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
    weights: Literal["auto", "embed"] = option(
        "auto", help="auto: over 2 GiB in a file of their own; embed: in the model, or an error."
    )
    reference: bool = option(
        True, help="Run the module once, and keep inputs and outputs for [verify]."
    )
    files: tuple[Path, ...] = option(
        (), help="What else the source reads: the export runs again when one changes."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Options):
    """[optimize]: see ``rmsnorm-export optimize``."""

    options: OptimizeOptions = flat(OptimizeOptions)
    requirement: Requirement = flat(Requirement)
    weights: Literal["auto", "link", "copy", "embed"] = option(
        "auto", help="What happens to weights in external files."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Options):
    """[prove]: every rewrite of [optimize], as its ``--prove`` does; a failure is exit code 4."""

    seed: Seed = option(0, help="Of the random inputs.")
    kernels: Path | None = option(None, help="A library, as of ``optimize --kernels``.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Build(Options):
    """[build]: see ``rmsnorm-export build``."""

    model: Subject | None = option(
        None, help="What to build.", shown="optimized where there is [optimize]"
    )
    options: BuildOptions = flat(BuildOptions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Options):
    """[verify]: whole models against each other; see ``rmsnorm-export verify``.

    Random or given inputs are not for a pair with ``pytorch``, whose inputs are those of the
    export.
    """

    pairs: tuple[tuple[str, ...], ...] | None = option(
        None,
        help="Of pytorch, raw, optimized: what against what.",
        shown="PyTorch (where the pipeline exports) and the raw model against the optimized one",
    )
    options: VerifyOptions = flat(VerifyOptions)
    engine: Literal["auto", "require", "never"] = option(
        "auto",
        help="The engine of [build] against the model that it was built from. auto: where a GPU "
        "is, else it is said that it was not; require: or fail; never.",
    )

    @property
    def inputs_file(self) -> Path | None:
        """The file with inputs, which is all that a pipeline file can give."""
        return self.options.inputs if isinstance(self.options.inputs, Path) else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Options):
    """[bench]: the raw model against its targets; see ``rmsnorm-export bench``."""

    options: BenchOptions = flat(BenchOptions)
    numerics: Numerics | None = option(
        None, help="Loosest change of rounding allowed.", shown="that of [optimize]"
    )
    png: bool = option(False, help="Draw benchmark.png, too; needs matplotlib.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Package(Options):
    """[package]: a Triton model repository; see ``rmsnorm-export package``."""

    model: Literal["raw", "optimized", "engine"] | None = option(
        None, help="What to package.", shown="optimized where there is [optimize]"
    )
    repository: Path | None = option(
        None, help="Folder of models.", shown="repository in the pipeline's folder"
    )
    options: PackageOptions = flat(PackageOptions)
    manifest: ManifestOptions = flat(ManifestOptions)


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


_BEGUN = {
    "pipeline": ("name = {name}",),
    "model": ('path = "model.onnx"',),
    "optimize": ('require = "all"',),
    "prove": (),
}
"""Tables that `reference` opens in a file to begin with, and keys of them."""


def reference(name: str = "") -> str:
    """A TOML file with every table and key, each commented out, with its type and default.

    Args:
        name: of a pipeline: the file is one to begin with, that optimizes and proves a model.
    """
    begun = _BEGUN if name else {"pipeline": ()}
    lines = ["# [model] or [export] is needed; a step runs when its table is there."]
    if name:
        lines.append("# Paths are relative to this file. rmsnorm-export deploy THIS.toml runs it.")
    for title, table in TABLES.items():
        lines += ["", f"[{title}]" if title in begun else f"# [{title}]"]
        lines += [key.format(name=json.dumps(name)) for key in begun.get(title, ())]
        for entry in spread(table):
            if entry.facts.toml:
                if name:
                    lines += textwrap.wrap(
                        entry.facts.help, 96, initial_indent="#   ", subsequent_indent="#   "
                    )
                end = ""
                if entry.default is REQUIRED:
                    end = "; required"
                elif entry.default not in (None, ()):
                    end = f"; default {json.dumps(entry.default)}"
                elif entry.facts.shown:
                    end = f"; default: {entry.facts.shown}"
                what = expected(entry.written)
                lines.append(f"# {entry.key}: {what}{end}")
    return "\n".join([*lines, ""])

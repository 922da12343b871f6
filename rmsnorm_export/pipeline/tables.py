"""The tables of a pipeline file: one dataclass each, whose fields are the keys.

Keys are called as the options of the commands, with underscores. A field without a default is
required; ``least`` in its metadata is the smallest number that it takes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.numerics import Numerics

StepName = Literal["export", "optimize", "prove", "build", "verify", "bench", "package"]
STEPS: tuple[StepName, ...] = (
    "export", "optimize", "prove", "build", "verify", "bench", "package",
)  # fmt: skip
"""In the order in which they run."""

Subject = Literal["raw", "optimized"]
"""``raw``: as exported, or the file of [model]; ``optimized``: what [optimize] made of it."""

FROM_ONE: dict[str, Any] = {"least": 1}
FROM_ZERO: dict[str, Any] = {"least": 0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """[pipeline]: what it is called and where it writes.

    Attributes:
        name: of its files, and of the packaged model.
        folder: for everything that is written; by default the name, beside the pipeline file.
    """

    name: str
    folder: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """[model]: an ONNX file to begin with."""

    path: Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """[export]: a PyTorch module to begin with; see ``rmsnorm-export export``.

    Attributes:
        source: ``module:factory``, a folder, a config.json or a .pt2 file. Modules are looked for
            beside the pipeline file first.
        arguments: of the factory.
        shapes: of the inputs, where the source does not say them.
        dtype: of the weights.
        opset: of the file.
        seed: of the example inputs.
        weights: ``auto``: over 2 GiB in a file of their own; ``embed``: in the model, or an error.
        reference: run the module once, and keep inputs and outputs for [verify].
        files: what else the source reads: the export runs again when one changes.
    """

    source: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    shapes: str | None = None
    dtype: Literal["f32", "f16", "bf16"] | None = None
    opset: int | None = None
    seed: int = dataclasses.field(default=0, metadata=FROM_ZERO)
    weights: Literal["auto", "embed"] = "auto"
    reference: bool = True
    files: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimize:
    """[optimize]: see ``rmsnorm-export optimize``."""

    target: Target = "portable"
    numerics: Numerics = "reordered"
    opset: int | None = dataclasses.field(default=None, metadata=FROM_ONE)
    fold_residual: bool = True
    fold_gate: bool = True
    require: Literal["all"] | int | None = dataclasses.field(default=None, metadata=FROM_ONE)
    weights: Literal["auto", "link", "copy", "embed"] = "auto"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """[prove]: every rewrite of [optimize], as its ``--prove`` does; a failure is exit code 4."""

    seed: int = dataclasses.field(default=0, metadata=FROM_ZERO)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """[build]: see ``rmsnorm-export build``.

    Attributes:
        model: what to build; by default ``optimized`` where there is [optimize].
        memory_limit: in bytes, or e.g. ``4GiB``.
    """

    model: Subject | None = None
    backend: Literal["auto", "tensorrt", "tensorrt-rtx"] = "auto"
    shapes: str | tuple[str, ...] | None = None
    plugin: Literal["auto", "require", "never"] = "auto"
    embed_plugin: bool = False
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    tf32: bool = False
    memory_limit: int | str | None = dataclasses.field(default=None, metadata=FROM_ONE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """[verify]: whole models against each other; see ``rmsnorm-export verify``.

    Attributes:
        pairs: of ``pytorch``, ``raw``, ``optimized``: what against what. By default PyTorch (where
            the pipeline exports) and the raw model against the optimized one.
        inputs: an .npz file, in place of random inputs; not for a pair with ``pytorch``, whose
            inputs are those of the export.
        shapes: of single random inputs, e.g. ``{ ids = [1, 16] }``.
        engine: the engine of [build] against the model that it was built from. ``auto``: where a
            GPU is, else it is said that it was not; ``require``: or fail; ``never``.
    """

    pairs: tuple[tuple[str, ...], ...] | None = None
    inputs: Path | None = None
    shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    seed: int = dataclasses.field(default=0, metadata=FROM_ZERO)
    rtol: float | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    atol: float | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    max_ulp: float | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    engine: Literal["auto", "require", "never"] = "auto"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """[bench]: the raw model against its targets; see ``rmsnorm-export bench``.

    Attributes:
        numerics: by default that of [optimize].
        png: draw ``benchmark.png``, too; needs matplotlib.
    """

    targets: tuple[Target, ...] = tuple(TARGETS)
    peers: tuple[str, ...] = ()
    provider: tuple[str, ...] | None = None
    shapes: str | None = None
    seconds: float = 5.0
    rounds: int | None = dataclasses.field(default=None, metadata=FROM_ONE)
    threads: int | None = dataclasses.field(default=None, metadata=FROM_ONE)
    peer_seconds: float = 300.0
    numerics: Numerics | None = None
    seed: int = dataclasses.field(default=0, metadata=FROM_ZERO)
    png: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """[package]: a Triton model repository; see ``rmsnorm-export package``.

    Attributes:
        model: ``optimized`` (where there is [optimize]), ``raw`` or ``engine``.
        repository: folder of models; by default ``repository`` in the pipeline's folder.
        name: of the model; by default that of the pipeline.
        check: run the packaged model in ONNX Runtime.
    """

    model: Literal["raw", "optimized", "engine"] | None = None
    repository: Path | None = None
    name: str | None = None
    version: int = dataclasses.field(default=1, metadata=FROM_ONE)
    max_batch: int | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    dynamic_batching: bool | None = None
    preferred_batch: tuple[int, ...] = dataclasses.field(default=(), metadata=FROM_ONE)
    queue_delay: int | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    instances: int | None = dataclasses.field(default=None, metadata=FROM_ONE)
    kind: Literal["gpu", "cpu"] | None = None
    warmup: bool | None = None
    shapes: str | None = None
    plugin_library: Path | None = None
    check: bool = True
    kserve: str | None = None
    kserve_name: str | None = None
    kserve_namespace: str | None = None
    kserve_cpu: str | None = None
    kserve_memory: str | None = None
    kserve_gpus: int | None = dataclasses.field(default=None, metadata=FROM_ZERO)
    kserve_replicas: tuple[int, ...] | None = dataclasses.field(default=None, metadata=FROM_ZERO)


TABLES: dict[str, type[Any]] = {
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

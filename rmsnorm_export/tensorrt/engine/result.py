"""Results of a build: frozen dataclasses of plain values.

``EngineRecord`` is what is stored beside the engine, in ``ENGINE.json``; it names files, never
folders.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import short
from rmsnorm_export.records import from_json
from rmsnorm_export.runtime.sizes import Declared, Profile
from rmsnorm_export.system.files import read_text
from rmsnorm_export.system.shown import Shown

Backend = Literal["tensorrt", "tensorrt-rtx"]
PluginUse = Literal["auto", "require", "never"]
How = Literal["plugin", "fused", "unfused", "unknown"]
LayersFrom = Literal["inspector", "builder log", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLayer:
    """One step of the engine.

    Attributes:
        name: of the layer; in a compiled region that of the kernel.
        type: as the backend calls it, e.g. ``kgen``, ``gemm``, ``PluginV3``.
        nodes: the ONNX nodes that it computes; ``inner | outer (Op)`` inside a function.
        profile: number of the optimization profile that it is for, from 0; None when unknown.
    """

    name: str
    type: str
    nodes: tuple[str, ...]
    profile: int | None = 0


@dataclasses.dataclass(frozen=True, slots=True)
class EngineNorm:
    """The fate of one RMSNorm.

    Attributes:
        name: of its node, or of the last node of its chain.
        form: ``node`` when the model has it as one node, ``chain`` when it is spelled out.
        how: ``plugin``; ``fused``: one kernel of the backend computes the norm; ``unfused``:
            several do; ``unknown``: the engine does not tell.
        kernels: how many compute the norm, its residual sum not counted; None when unknown. With
            several profiles, in that with the most.
        names: of these kernels.
        reason: why it is unknown, or "".
    """

    name: str
    op: str
    form: Literal["node", "chain"]
    how: How
    kernels: int | None
    names: tuple[str, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRecord:
    """The contents of ``ENGINE.json``, beside the engine.

    Attributes:
        engine, bytes, sha256: name, size and hash of the engine file.
        model, model_sha256: name and hash of the ONNX file that it was built from, external data
            not counted.
        backend, version: what built it.
        versions: of the packages that took part.
        gpus: ``name, compute capability, driver`` of those visible at the build; () without one.
        built: when, UTC, ISO 8601.
        seconds: that parsing and building took.
        inputs, outputs: as the model declares them.
        profiles: optimization profiles; the three shapes of a fixed input are equal.
        flags: options of the builder.
        plugin, plugin_reason: name of the library that was loaded, "" without one; and why.
        layers: of the engine, in order.
        layers_from: the engine inspector, or the builder's log of the same layers where there is no
            GPU to load the engine with.
        messages: warnings of the parser and the builder.
        notes: what else the user may want to know.
    """

    engine: str
    bytes: int
    sha256: str
    model: str
    model_sha256: str
    backend: Backend
    version: str
    versions: dict[str, str]
    gpus: tuple[str, ...]
    built: str
    seconds: float
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    profiles: tuple[Profile, ...]
    flags: dict[str, bool | int | float | str | None]
    plugin: str
    plugin_reason: str
    norms: tuple[EngineNorm, ...]
    layers: tuple[EngineLayer, ...]
    layers_from: LayersFrom
    messages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class EngineResult(Shown):
    """Outcome of ``build_engine``: the engine, and the JSON file beside it, which holds the
    record."""

    path: Path
    sidecar: Path
    record: EngineRecord


def sidecar_path(engine: Path) -> Path:
    """Return where the record of ``engine`` is."""
    return engine.with_name(engine.name + ".json")


def read_record(engine: Path) -> EngineRecord:
    """Return the record of ``engine``, without which its shapes and types are not known.

    Raises:
        InputError: there is no engine or no record beside it, or that cannot be read.
    """
    what, path = "The engine cannot be used.", sidecar_path(engine)
    for file, name in ((engine, "the engine"), (path, "the record of the engine")):
        if not file.is_file():
            fix = "check the path; rmsnorm-export build writes both, keep the two together"
            raise InputError(what, found=f"{name} does not exist: {short(str(file), 300)}", fix=fix)
    text = read_text(path, what, fix="build the engine again")
    return from_json(text, EngineRecord)

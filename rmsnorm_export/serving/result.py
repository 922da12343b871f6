"""What packaging returns and stores: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rmsnorm_export.system.shown import Shown

ServingBackend = Literal["onnxruntime", "tensorrt"]
InstanceKind = Literal["gpu", "cpu"]
Outcome = Literal["passed", "skipped", "not run"]

RECORD_FILE = "rmsnorm_export.json"
"""The record in a model's folder, by which this tool knows its own files."""

CONFIG_FILE = "config.pbtxt"
CARD_FILE = "README.md"
MANIFEST_FILE = "inferenceservice.yaml"


@dataclasses.dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output as a client of the server sees it.

    Attributes:
        dtype: Triton's name of its type, e.g. ``TYPE_FP16``.
        shape: of a whole request, batch axis included; -1 for a dynamic size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file that was put into the model's folder; ``path`` is relative to it, with ``/``."""

    path: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class PackageCheck:
    """Something that was checked; what fails is an error, and nothing is written.

    Attributes:
        outcome: ``passed``; ``skipped``: it was not asked for; ``not run``: it cannot be run here.
        detail: with what, or why not.
    """

    name: str
    outcome: Outcome
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class PackagedNorm:
    """One RMSNorm of a packaged model.

    Attributes:
        how: ``one node`` or ``chain`` in an ONNX file; ``plugin``, ``fused``, ``unfused`` or
            ``unknown`` in an engine; ``refused``: left as it was, for ``reason``.
        numerics: class of the rewrite, "" where no report of ``optimize`` says it.
        proof: outcome of the proof, "" without one.
        reason: why it was refused, or "".
    """

    name: str
    op: str
    how: str
    numerics: str = ""
    proof: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PackagedVersion:
    """One version of the model.

    Attributes:
        version: its number, which is its folder.
        source, source_sha256: name and hash of the file that it was made from; ``memory`` for a
            model that was none.
        made: when, UTC, ISO 8601.
        tool: name and version of this package.
        files: everything in the version's folder.
        load: command line that loads the plugin, for a repository at ``/models``; "" without one.
        notes: what else the user may want to know.
    """

    version: int
    source: str
    source_sha256: str
    made: str
    tool: str
    files: tuple[PackagedFile, ...]
    norms: tuple[PackagedNorm, ...]
    load: str
    checks: tuple[PackageCheck, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PackageRecord:
    """What stands in ``NAME/rmsnorm_export.json``.

    Attributes:
        backend: Triton backend that runs it.
        max_batch: ``max_batch_size`` of the configuration; 0: requests are not batched.
        files: files beside the versions: configuration, model card, manifest.
        versions: in ascending order.
    """

    name: str
    backend: ServingBackend
    max_batch: int
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    files: tuple[PackagedFile, ...]
    versions: tuple[PackagedVersion, ...]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Packaged(Shown):
    """Outcome of ``package_model``.

    Attributes:
        path: folder of the model in the repository.
        record: as it is stored in ``path``.
        checks: what was checked, the model in its final place included.
        load: command line that starts the server with the plugin; "" when none is needed.
        notes: about the repository.
    """

    path: Path
    version: int
    record: PackageRecord
    checks: tuple[PackageCheck, ...]
    load: str = ""
    notes: tuple[str, ...] = ()

    @property
    def current(self) -> PackagedVersion:
        """The version that was packaged."""
        return next(v for v in self.record.versions if v.version == self.version)

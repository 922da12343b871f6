"""Results of packaging, as they are returned and stored: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal

from rmsnorm_export.system.shown import Shown

ServingBackend = Literal["onnxruntime", "tensorrt"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""Name of a model, and of a pipeline: of a folder, of files, and a part of a URL."""

RECORD_FILE = "package.json"
"""In the folder of a version: by it this tool knows its own files."""

CONFIG_FILE = "config.pbtxt"
MODEL_FILE: dict[ServingBackend, str] = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}


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
class PackagedModel:
    """One version of a model, as in ``NAME/VERSION/package.json``.

    Attributes:
        backend: Triton backend that runs it.
        max_batch: ``max_batch_size`` of the configuration; 0: requests are not batched.
        source: name of the file that it was made from; ``memory`` for a model that was no file.
        owner: the pipeline that made it, or "".
        answers: what was asked, of which runtime, and answered; or why it was not.
        load: arguments with which the server loads the plugin, for a repository at ``/models``.
        files: everything of this version, and the configuration: path from the model's folder, and
            SHA-256.
    """

    name: str
    version: int
    backend: ServingBackend
    max_batch: int
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    source: str
    owner: str
    answers: str
    load: str
    notes: tuple[str, ...]
    files: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Packaged(Shown):
    """Outcome of ``package_model``.

    Attributes:
        path: of the repository.
        models: one, or of a folder of graphs one of each.
    """

    path: Path
    models: tuple[PackagedModel, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that was written, the records excepted."""
        return tuple(self.path / one.name / file for one in self.models for file in one.files)

"""The model repository: the folder of a model, the records of its versions, its configuration.

``config.pbtxt``, text of Triton's model_config.proto, is a template of Jinja2 beside this file.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from google.protobuf.text_encoding import CEscape
from jinja2 import Environment, PackageLoader, StrictUndefined

from rmsnorm_export.deploy.options import NAME, PackageOptions
from rmsnorm_export.deploy.served import ServedModel, ServedTensor, ServingBackend
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.records import from_json
from rmsnorm_export.system.files import StrPath, output_path, read_text
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.system.shown import Shown

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""

RECORD_FILE = "package.json"
"""In the folder of a version: by it this tool knows its own files."""

CONFIG_FILE = "config.pbtxt"
MODEL_FILE: dict[ServingBackend, str] = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}


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


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of the model.

    Attributes:
        folder: of the model in the repository.
        kept: records of the other versions.
        new_config: the configuration is written; else that of other versions, or one that was
            edited, stays as it is.
    """

    folder: Path
    kept: tuple[PackagedModel, ...]
    new_config: bool


def model_name(name: str | None, source: object) -> str:
    """Return the name, or that of the source file without its suffix.

    Raises:
        UsageError: it cannot be a folder name and a part of a URL.
    """
    if name is None:
        name = Path(source).stem if isinstance(source, str | os.PathLike) else "model"
    if NAME.fullmatch(name):
        return name
    fix = "give --name with letters, digits, _ and -: it is a folder and a part of a URL"
    raise UsageError("The name of the model cannot be used.", found=quoted(name), fix=fix)


def find_place(repository: StrPath, name: str, options: PackageOptions) -> Place:
    """Return the place, if the version can be put there; nothing is made or changed.

    A version of the same owner is replaced without ``force``.

    Raises:
        UsageError: the version exists and may not be replaced, or the folder is of other origin.
        InputError: what is there cannot be read.
    """
    root = Path(os.path.realpath(output_path(repository)))
    version, force = options.version, options.force
    folder = root / name
    every = _records(folder)
    kept = {number: record for number, record in every.items() if number != version}
    old = every.get(version)
    ours = old is not None and options.owner != "" and old.owner == options.owner
    problem, fix = "", "choose another --name, --version or repository, or move it away"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        problem = "it is no folder"
    elif folder.exists() and not every and any(folder.iterdir()):
        problem = "this tool did not make it"
    elif others := _others(folder / str(version), old):
        problem = f"version {version} holds {short(others)}, which this tool did not make"
    elif old is not None and not (force or ours):
        problem = f"version {version} exists already"
        fix = f"use --version {max(every) + 1} to add one, or --force to replace it"
    if problem:
        what = "The place of the model in the repository is taken."
        raise UsageError(what, found=f"{short(str(folder), 300)}: {problem}", fix=fix)
    config = folder / CONFIG_FILE
    written = {record.files.get(CONFIG_FILE) for record in every.values()}
    new = force or not config.is_file() or (ours and sha256_of(config) in written)
    return Place(folder, tuple(kept.values()), new)


def _records(folder: Path) -> dict[int, PackagedModel]:
    """Return the records of the versions in a model's folder, by number, in order."""
    records = {}
    for file in folder.glob(f"[0-9]*/{RECORD_FILE}"):
        if file.parent.name.isdecimal() and not file.is_symlink():
            what = "The record of a version in the repository cannot be read."
            text = read_text(file, what, fix="choose another --name or repository")
            records[int(file.parent.name)] = from_json(text, PackagedModel)
    return dict(sorted(records.items()))


def _others(home: Path, record: PackagedModel | None) -> str:
    """Name a file in a version's folder that is not of its record; "" without one."""
    if record is None:
        return home.name if os.path.lexists(home) else ""
    ours = {RECORD_FILE, *(os.path.relpath(file, home.name) for file in record.files)}
    present = {p.relative_to(home).as_posix() for p in home.rglob("*") if not p.is_dir()}
    return min(present - ours, default="")


def check_kept(kept: PackagedModel, subject: ServedModel, max_batch: int) -> None:
    """Refuse a version that one configuration does not suit beside one that is kept.

    Raises:
        InputError: naming one.
    """
    names = {item.name for item in {*kept.inputs, *kept.outputs} ^ {*sum(subject.tensors, ())}}
    if names or (kept.backend, kept.max_batch) != (subject.backend, max_batch):
        differing = ", ".join(map(quoted, sorted(names))) or "backend or largest batch"
        what = "The versions of a model share one configuration, and this one does not fit it."
        found = f"{differing}: not as in version {kept.version}"
        raise InputError(what, found=found, fix="package it under another name")


def config_text(name: str, model: ServedModel, max_batch: int, kind: str, kernels: str) -> str:
    """Return the text of a ``config.pbtxt``.

    Every version in the folder is served: by default the server would serve the latest only, and
    a new version would take the place of the one that clients use.

    Args:
        name, model: the model.
        max_batch: most requests in a batch; 0: none.
        kind: ``gpu``, ``cpu`` or ``auto``.
        kernels: where the server finds a library of kernels for ONNX Runtime, or "".
    """
    environment = Environment(
        loader=PackageLoader("rmsnorm_export.deploy", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quoted
    facts = {"name": name, "model": model, "file": MODEL_FILE[model.backend], "kind": kind}
    facts |= {"max_batch": max_batch, "delay": QUEUE_DELAY_US, "kernels": kernels}
    return environment.get_template("config.pbtxt.j2").render(facts)


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format."""
    return f'"{CEscape(text.encode("utf-8", "surrogateescape"), as_utf8=False)}"'

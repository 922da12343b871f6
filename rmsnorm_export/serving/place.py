"""Where a package goes: the model's name, the repository, and what is there already."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.records import from_json
from rmsnorm_export.serving.protos import parse_config
from rmsnorm_export.serving.result import (
    CARD_FILE,
    CONFIG_FILE,
    MANIFEST_FILE,
    RECORD_FILE,
    PackageRecord,
)
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.reading import read_file, read_text

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

LARGEST_VERSION = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the model goes: its folder in the repository, and the version that is packaged.

    ``record`` and ``config`` are those of the model that is there; ``config_bytes`` is the file.
    """

    folder: Path
    version: int
    record: PackageRecord | None = None
    config: Any = None
    config_bytes: bytes = b""


def model_name(given: str | None, source: object) -> str:
    """The name as given, else that of the source file without its suffix.

    Raises:
        UsageError: it cannot be a folder name and a part of a URL.
    """
    name = given
    if name is None:
        is_path = isinstance(source, str | os.PathLike)
        name = Path(str(os.fspath(source))).stem if is_path else "model"  # type: ignore[call-overload]
    if _MODEL_NAME.fullmatch(name):
        return name
    raise UsageError(
        "The name of the model cannot be used.",
        found=quoted(name) if given is not None else f"{quoted(name)}, from the file's name",
        fix="give --name with letters, digits, _ and -: it is a folder and a part of a URL",
    )


def find_place(repository: StrPath, name: str, version: int, *, force: bool) -> Place:
    """The place, if the version can be put there; nothing is made or changed.

    Raises:
        UsageError: the version exists and ``force`` is not given, or the folder is of other origin.
        InputError: the place cannot be written, or what is there cannot be read.
    """
    if not 1 <= version <= LARGEST_VERSION:
        raise UsageError(
            "The version cannot be used.", found=str(version), fix=f"1 to {LARGEST_VERSION}"
        )
    text = os.fspath(repository)
    if not text or "\0" in text:
        raise UsageError(
            "The repository has no usable name.", found=repr(text), fix="give a folder"
        )
    root = Path(os.path.realpath(text))
    folder = root / name
    _check_writable(root)
    if not os.path.lexists(folder):
        return Place(folder, version)
    if folder.is_symlink() or not folder.is_dir():
        raise InputError(
            "The place of the model is no folder.",
            found=short(str(folder), 300),
            fix="choose another name, or move it away",
        )
    if not any(folder.iterdir()):
        return Place(folder, version)
    record = _read_package_record(folder)
    config = folder / CONFIG_FILE
    data = read_file(config) if config.is_file() else b""
    place = Place(folder, version, record, _read_config(data, config, force=force), data)
    _check_version(place, force=force)
    if not force:
        _check_unchanged(place)
    return place


def _check_writable(root: Path) -> None:
    existing = root if root.exists() else root.parent
    if not existing.is_dir():
        raise InputError(
            "The repository cannot be made.",
            found=f"{short(str(existing), 300)} is no folder",
            fix="make the folder above the repository first, or check the path",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            "The repository cannot be written.",
            found=f"no permission to make files in {short(str(existing), 300)}",
            fix="check the folder and its permissions",
        )


def _read_package_record(folder: Path) -> PackageRecord:
    path = folder / RECORD_FILE
    if path.is_symlink() or not path.is_file():
        raise UsageError(
            "A folder of that name exists already, and this tool did not make it.",
            found=f"{short(str(folder), 300)} has no {RECORD_FILE}",
            fix="choose another --name or repository; it is not replaced, with --force neither",
        )
    unreadable = "The record of the model in the repository cannot be read."
    text = read_text(path, unreadable, fix="choose another --name or repository")
    return from_json(text, PackageRecord)


def _read_config(data: bytes, path: Path, *, force: bool) -> Any:
    """The configuration in the file; None where it is written anew."""
    if force:
        return None
    try:
        return parse_config(data.decode("utf-8"), short(str(path), 300))
    except UnicodeDecodeError as error:
        raise InputError(
            "The configuration of the model in the repository cannot be read.",
            found=f"{short(str(path), 300)}: {error}",
            fix="mend the file, or package with --force to write it anew",
        ) from error


def _check_version(place: Place, *, force: bool) -> None:
    """The version is new, or it is ours and may be replaced."""
    folder = place.folder / str(place.version)
    if not os.path.lexists(folder):
        return
    shown = short(str(folder), 300)
    ours = {
        file.path
        for version in (place.record.versions if place.record else ())
        if version.version == place.version
        for file in version.files
    }
    present = {p.relative_to(place.folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    if folder.is_symlink() or present - ours or not ours:
        other = sorted(present - ours)
        raise UsageError(
            "The version exists already and holds files that this tool did not make.",
            found=f"{shown}: {short(other[0]) if other else 'a link'}",
            fix="choose another --version, or move these files away",
        )
    if not force:
        latest = max(version.version for version in place.record.versions) if place.record else 1
        raise UsageError(
            "The version exists already.",
            found=shown,
            fix=f"use --version {latest + 1} to add one, or --force to replace it",
        )


def _check_unchanged(place: Place) -> None:
    """What is written anew for another version was not edited by hand since."""
    for file in place.record.files if place.record else ():
        path = place.folder / file.path
        if file.path not in (CARD_FILE, MANIFEST_FILE) or not path.is_file():
            continue
        if sha256_of(path) != file.sha256:
            raise UsageError(
                "A file that would be written anew was changed since.",
                found=short(str(path), 300),
                fix="move it away to keep the changes, or use --force to replace it",
            )

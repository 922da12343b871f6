"""``build(output=...)``: copies of the libraries in a folder of the user's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import Transaction
from rmsnorm_export.tensorrt.plugin.cache import MANIFEST, writable
from rmsnorm_export.tensorrt.plugin.result import Built

MANIFEST_COPY = "librmsnorm_plugin.json"
"""The manifest's name among files that are not ours."""


def check_output(output: str | os.PathLike[str], built: Built, *, force: bool) -> Path:
    """The folder that the copies go to; nothing is made or changed.

    Args:
        output: as the user gave it.
        built: without ``libraries`` before it is built: then only the folder is looked at.
        force: other files of these names may be replaced.

    Raises:
        UsageError: a file in it has the name of a copy, other contents, and ``force`` is False.
        InputError: it is no folder.
    """
    if not os.fspath(output) or os.fspath(output) == "-":
        raise UsageError("The output is no folder.", found=repr(output), fix="give a folder's path")
    target = Path(output).expanduser().absolute()
    if os.path.lexists(target) and not target.is_dir():
        raise InputError(
            "The output is no folder.",
            found=str(target),
            fix="give a folder; it is made if it does not exist",
        )
    for source, copy in _copies(built, target):
        if os.path.lexists(copy) and not force and not _same(source, copy):
            raise UsageError(
                "The output would replace another file.",
                found=str(copy),
                fix="give another folder, or --force to replace it",
            )
    return target


def _copies(built: Built, target: Path) -> list[tuple[Path, Path]]:
    """Every file and its copy."""
    if not built.libraries:
        return []
    pairs = [(library.path, target / library.path.name) for library in built.libraries]
    return [*pairs, (built.folder / MANIFEST, target / MANIFEST_COPY)]


def _same(one: Path, other: Path) -> bool:
    with writable(other):
        return other.is_file() and sha256_of(one) == sha256_of(other)


def copy_to(target: Path, built: Built) -> tuple[Path, ...]:
    """Copy libraries and manifest, each whole or not at all; those that are there stay."""
    pairs = _copies(built, target)
    with writable(target), Transaction() as files:
        for source, copy in pairs:
            if _same(source, copy):
                continue
            temporary, descriptor = files.temp(copy)
            os.close(descriptor)
            shutil.copyfile(source, temporary)
            files.publish(temporary, copy, replace=True)
    return tuple(copy for _, copy in pairs)

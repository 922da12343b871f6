"""The CMake project of the plugin: where it is, and what tells one version of it from another."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.digest import sha256_of_all

_PACKAGED = Path(__file__).parent / "_sources"
"""In a checkout a link to the folder plugins/."""

_SUFFIXES = {".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".cmake", ".txt", ".map", ".in"}
_APART = {"tests", "bench", "build"}
"""Folders that go into no library."""


def find_source(source: str | os.PathLike[str] | None = None) -> Path:
    """The folder with the project's ``CMakeLists.txt``.

    Raises:
        InputError: there is none.
    """
    place = (_PACKAGED if source is None else Path(source).expanduser()).resolve()
    if (place / "CMakeLists.txt").is_file():
        return place
    raise InputError(
        "The sources of the plugin are not there.",
        found=f"no CMakeLists.txt in {place}",
        fix="pip install --force-reinstall rmsnorm-export"
        if source is None
        else "give the folder plugins/ of the repository",
    )


def source_hash(folder: Path) -> str:
    """SHA-256 over names and contents of the files that go into the libraries."""
    paths = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.suffix in _SUFFIXES and not hidden and not _APART & set(parts) and path.is_file():
            paths.append(path)
    return sha256_of_all(paths, folder)

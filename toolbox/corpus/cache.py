"""A cache on disk for things that take long to make and follow from versions and sources alone.

The folder is ``rmsnorm_export/exports`` in the user's cache folder (``XDG_CACHE_HOME``), shared by
all checkouts, or ``RMSNORM_EXPORT_CACHE``. An entry is a folder that appears whole or not at all:
it is written under a temporary name and renamed. Of processes that need the same one, one makes it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import pathlib
import tempfile
from collections.abc import Callable

import filelock

_HERE = pathlib.Path(__file__).parent
_PACKAGES = ("torch", "transformers", "onnxscript", "onnx")


def root() -> pathlib.Path:
    """Return the folder that holds the cache; it is made on first use."""
    if named := os.environ.get("RMSNORM_EXPORT_CACHE"):
        return pathlib.Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "rmsnorm_export" / "exports"


@functools.cache
def versions() -> str:
    """Return the versions of the packages that decide what an export looks like."""
    return " ".join(f"{name}-{importlib.metadata.version(name)}" for name in _PACKAGES)


@functools.cache
def source_hash(*files: str) -> str:
    """Return a hash of source files of this folder, by name without suffix."""
    content = b"".join((_HERE / f"{name}.py").read_bytes() for name in files)
    return hashlib.sha256(content).hexdigest()[:16]


def entry(kind: str, name: str, key: str, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the folder of one entry, filled by ``fill(folder)`` when it is not there yet.

    Args:
        kind: folder for entries of this sort.
        name: readable part of the entry's name.
        key: everything that the content depends on besides ``versions()``.
        fill: writes the content into the empty folder that it is given. What it raises goes
            through, and leaves no entry.
    """
    digest = hashlib.sha256(f"{versions()}\n{key}".encode()).hexdigest()[:12]
    final, locks = root() / kind / f"{name}-{digest}", root() / ".locks"
    if final.is_dir():
        return final
    for folder in (final.parent, locks):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        filelock.FileLock(locks / f"{kind}-{final.name}"),
        tempfile.TemporaryDirectory(prefix=f".{name}-", dir=final.parent) as scratch,
    ):
        if not final.is_dir():
            partial = pathlib.Path(scratch, "entry")
            partial.mkdir()
            fill(partial)
            partial.rename(final)
    return final

"""A cache on disk for things that take long to make and follow from versions and sources alone.

The folder is ``rmsnorm_export/exports`` in the user's cache folder (``XDG_CACHE_HOME``), shared by
all checkouts, or ``RMSNORM_EXPORT_CACHE``. An entry is a
folder that appears whole or not at all: it is written under a temporary name and renamed, so a
killed process leaves no half entry behind. Of processes that need the same entry one makes it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import filelock
import ml_dtypes
import numpy as np

_HERE = pathlib.Path(__file__).parent
_PACKAGES = ("torch", "transformers", "onnxscript", "onnx")
_BF16 = "@bfloat16"


def root() -> pathlib.Path:
    """The folder that holds the cache; made on first use."""
    named = os.environ.get("RMSNORM_EXPORT_CACHE")
    if named:
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
    """The folder of one entry, filled by ``fill(folder)`` when it is not there yet.

    Args:
        kind: folder for entries of this sort.
        name: readable part of the entry's name.
        key: everything that the content depends on besides ``versions()``.
        fill: writes the content into the empty folder that it is given. What it raises goes
            through, and leaves no entry.
    """
    digest = hashlib.sha256(f"{versions()}\n{key}".encode()).hexdigest()[:12]
    final = root() / kind / f"{name}-{digest}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    locks = root() / ".locks"
    locks.mkdir(exist_ok=True)
    with filelock.FileLock(locks / f"{kind}-{final.name}"):
        if final.is_dir():
            return final
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{name}-", dir=final.parent))
        try:
            fill(partial)
            try:
                partial.rename(final)
            except OSError:
                if not final.is_dir():  # made meanwhile, where the file system has no locks
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return final


def save_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an ``.npz``; bfloat16, which NumPy's format does not know, goes as uint16."""
    half = {name for name, array in arrays.items() if array.dtype == ml_dtypes.bfloat16}
    plain = {name: array for name, array in arrays.items() if name not in half}
    np.savez(path, **plain, **{name + _BF16: arrays[name].view(np.uint16) for name in half})  # type: ignore[arg-type]


def load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Return what ``save_arrays`` wrote, with its types."""
    with np.load(path) as stored:
        return {
            name.removesuffix(_BF16): stored[name].view(ml_dtypes.bfloat16)
            if name.endswith(_BF16)
            else stored[name]
            for name in stored.files
        }

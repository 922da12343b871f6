"""A cache on disk for things that take long to make and follow from versions and sources alone.

The folder is ``rmsnorm_export/exports`` in the user's cache folder (``XDG_CACHE_HOME``), shared by
all checkouts, or ``RMSNORM_EXPORT_CACHE``. An entry is a
folder that appears whole or not at all: it is written under a temporary name and renamed, so a
killed process leaves no half entry behind. Of processes that need the same entry one makes it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable

import ml_dtypes
import numpy as np

from rmsnorm_export.system.files import locked

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
    """Versions of the packages that decide what an export looks like."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name}-{importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name}-none")
    return " ".join(found)


@functools.cache
def source_hash(*files: str) -> str:
    """Hash of source files of this folder, by name without suffix; comments do not count."""
    digest = hashlib.sha256()
    for name in files:
        tree = ast.parse((_HERE / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                # The folder was tests/corpus once: entries made then are as good as new ones.
                node.module = re.sub(r"^tests\.tools\.corpus\b", "tests.corpus", node.module)
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [n for n in body if not _is_string(n)]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def _is_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def entry(kind: str, name: str, key: str, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """The folder of one entry, filled by ``fill(folder)`` when it is not there yet.

    Args:
        kind: folder for entries of this sort.
        name: readable part of the entry's name.
        key: everything that the content depends on besides ``versions()``.
        fill: writes the content into the empty folder that it is given. What it raises goes
            through, and leaves no entry.
    """
    final = root() / kind / f"{name}-{_digest(versions(), key)}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    locks = root() / ".locks"
    locks.mkdir(exist_ok=True)
    with locked(locks / f"{kind}-{final.name}"):
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


def _digest(packages: str, key: str) -> str:
    return hashlib.sha256(f"{packages}\n{key}".encode()).hexdigest()[:12]


def save_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an ``.npz``; bfloat16, which NumPy's format does not know, goes as uint16."""
    plain = {}
    for name, array in arrays.items():
        if array.dtype == ml_dtypes.bfloat16:
            plain[name + _BF16] = array.view(np.uint16)
        else:
            plain[name] = array
    np.savez(path, **plain)  # type: ignore[arg-type]


def load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """What ``save_arrays`` wrote, with its types."""
    arrays = {}
    with np.load(path) as stored:
        for name in stored.files:
            if name.endswith(_BF16):
                arrays[name.removesuffix(_BF16)] = stored[name].view(ml_dtypes.bfloat16)
            else:
                arrays[name] = stored[name]
    return arrays

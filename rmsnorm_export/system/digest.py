"""The SHA-256 of files, and of folders of sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_all(paths: Iterable[Path], folder: Path) -> str:
    """SHA-256 over names, relative to ``folder``, and contents of files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\0".encode())
    return digest.hexdigest()

"""What identifies files: their SHA-256, or of large ones size and time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rmsnorm_export.system.reading import open_regular

HASHED_BYTES = 1 << 30
"""Files are hashed that have no more bytes together; of more, size and time stand for the hash."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 18):
            digest.update(block)
    return digest.hexdigest()


def identified(
    paths: Sequence[Path], *, small: int = 0, sha256: Callable[[Path], str] = sha256_of
) -> list[tuple[os.stat_result, str]]:
    """State and hash of each file; of many bytes, "" for the hash of those over ``small`` bytes.

    Raises:
        OSError: one cannot be read.
    """
    states = [path.stat() for path in paths]
    largest = HASHED_BYTES if sum(state.st_size for state in states) <= HASHED_BYTES else small
    return [
        (state, sha256(path) if state.st_size <= largest else "")
        for path, state in zip(paths, states, strict=True)
    ]


def sha256_of_all(paths: Iterable[Path], folder: Path) -> str:
    """SHA-256 over names, relative to ``folder``, and contents of files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\0".encode())
    return digest.hexdigest()

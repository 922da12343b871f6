"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rmsnorm_export.system.reading import open_regular


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 18):
            digest.update(block)
    return digest.hexdigest()

"""The timing cache: read before a build, extended after it, never lost and never half written.

Several builds may share one file. Each takes the newest content under a lock, adds what it measured
and puts the sum in its place with one rename. A file that the backend does not take for a cache is
left as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.lock import locked


def save_timing_cache(config: Any, name: str) -> str:
    """Add what ``config`` measured to the file ``name``.

    Args:
        config: ``IBuilderConfig`` of a build that is over.
        name: of the file; made when it is not there.

    Returns:
        What was done, for the notes.
    """
    path = Path(name)
    cache = config.get_timing_cache()
    if cache is None:
        return "the backend has no timing cache to keep"
    with locked(path.parent / f".{path.name}.lock"):
        try:
            before = path.read_bytes()
        except FileNotFoundError:
            before = b""
        if before and not _absorb(config, cache, before):
            return f"{path.name} is no timing cache of this backend and GPU: left as it is"
        data = bytes(cache.serialize())
        if data == before:
            return f"{path.name} has all that was measured"
        write_whole(path, data)
    return f"{path.name}: {len(before)} bytes before, {len(data)} after"


def _absorb(config: Any, cache: Any, before: bytes) -> bool:
    """Add the content of a file to ``cache``, unless the backend does not take it for a cache.

    What it does not take it replaces by an empty cache, without an error.
    """
    old, empty = config.create_timing_cache(before), config.create_timing_cache(b"")
    if old is None:
        return False
    taken = bytes(old.serialize())
    if taken == bytes(empty.serialize()) and before != taken:
        return False
    return bool(cache.combine(old, ignore_mismatch=False))

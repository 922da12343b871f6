"""``ENGINE.json``: the record that stands beside an engine."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.system.files import read_text
from rmsnorm_export.tensorrt.engine.result import EngineRecord


def sidecar_path(engine: Path) -> Path:
    """Where the record of ``engine`` is."""
    return engine.with_name(engine.name + ".json")


def record_text(record: EngineRecord) -> str:
    """The record as a JSON document."""
    return to_json(record)


def read_record(engine: Path) -> EngineRecord | None:
    """The record of ``engine``; None when there is none.

    Raises:
        InputError: the file cannot be read, or is no record.
    """
    path = sidecar_path(engine)
    if not path.exists():
        return None
    unreadable = "The record of the engine cannot be read."
    text = read_text(path, unreadable, fix="build the engine again, or delete the file")
    return from_json(text, EngineRecord)

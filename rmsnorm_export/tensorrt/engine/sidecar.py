"""``ENGINE.json``: the record that stands beside an engine."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.tensorrt.engine.result import EngineRecord

LARGEST = 1 << 28
"""Bytes of a record that is read; one of a large model has a few millions."""


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
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(
                "The record of the engine is too large to be one.",
                found=f"{path.name} has {path.stat().st_size} bytes",
                fix="build the engine again",
            )
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            "The record of the engine cannot be read.",
            found=f"{path.name}: {error}",
            fix="build the engine again, or delete the file",
        ) from error
    return from_json(text, EngineRecord)

"""External data that is missing, too short, or somewhere that no model may reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hostile.frames import GAIN, external_model
from hostile.registry import hostile


def _placed(name: str, words: tuple[str, ...], location: str = "w.bin", **arguments: Any) -> None:
    """Register a model whose gain is said to be there."""

    def make(folder: Path) -> Path:
        return external_model(folder, location, **arguments)

    make.__name__ = name
    hostile(*words)(make)


_placed("windows_location", ("'w'", "absolute"), r"C:\weights\w.bin", data=GAIN)
_placed("missing_data", ("'w'", "w.bin", "No such file"))
_placed("data_is_a_device", ("'w'", "absolute"), "/dev/zero")
_placed("data_is_a_device_by_a_detour", ("'w'", "leaves the folder"), "../" * 40 + "dev/zero")
_placed("short_data", ("'w'", "w.bin", "too short", "31 bytes"), data=GAIN[:-1])
_placed("offset_past_the_end", ("'w'", "too short"), offset=2**62, data=GAIN)
_placed("negative_offset", ("negative", "'w'"), offset=-4, data=GAIN)
_placed("offset_that_is_no_number", ("'four'",), offset="four", data=GAIN)
_placed("wrong_length", ("'w'", "16 bytes", "32 bytes"), length=16, data=GAIN)
_placed("no_location", ("'w'", "not a file name"), "", data=GAIN)


@hostile("'w'", "absolute")
def absolute_location(folder: Path) -> Path:
    return external_model(folder, str(folder / "w.bin"), data=GAIN)


def _inner(folder: Path) -> Path:
    """A folder for the model, with a file outside of it that no model may reach."""
    (folder / "secret.bin").write_bytes(GAIN)
    inner = folder / "inner"
    inner.mkdir()
    return inner


@hostile("'w'", "../secret.bin", "leaves the folder")
def parent_location(folder: Path) -> Path:
    return external_model(_inner(folder), "../secret.bin")


@hostile("'w'", "leaves the folder")
def hidden_parent_location(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "sub").mkdir()
    return external_model(inner, "sub/../../secret.bin")


@hostile("'w'", "symbolic link", "secret.bin")
def symlinked_data(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "w.bin").symlink_to(folder / "secret.bin")
    return external_model(inner)


@hostile("'w'", "symbolic link")
def symlinked_folder(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "sub").symlink_to(folder)
    return external_model(inner, "sub/secret.bin")


@hostile("'w'", "hard link")
def hard_linked_data(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "w.bin").hardlink_to(folder / "secret.bin")
    return external_model(inner)


@hostile("'w'", "not an ordinary file")
def data_is_a_folder(folder: Path) -> Path:
    (folder / "w.bin").mkdir()
    return external_model(folder)


@hostile("'w'", "not an ordinary file")
def data_is_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return external_model(folder)

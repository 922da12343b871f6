"""External data that is missing, too short, or somewhere that no model may reach."""

from __future__ import annotations

import os
from pathlib import Path

from hostile.frames import (
    GAIN,
    external_model,
)
from hostile.registry import hostile


@hostile("'w'", "absolute")
def absolute_location(folder: Path) -> Path:
    return external_model(folder, str(folder / "w.bin"), data=GAIN)


@hostile("'w'", "absolute")
def windows_location(folder: Path) -> Path:
    return external_model(folder, r"C:\weights\w.bin", data=GAIN)


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


@hostile("'w'", "w.bin", "does not exist")
def missing_data(folder: Path) -> Path:
    return external_model(folder)


@hostile("'w'", "not an ordinary file")
def data_is_a_folder(folder: Path) -> Path:
    (folder / "w.bin").mkdir()
    return external_model(folder)


@hostile("'w'", "not an ordinary file")
def data_is_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return external_model(folder)


@hostile("'w'", "absolute")
def data_is_a_device(folder: Path) -> Path:
    return external_model(folder, "/dev/zero")


@hostile("'w'", "leaves the folder")
def data_is_a_device_by_a_detour(folder: Path) -> Path:
    return external_model(folder, "../" * 40 + "dev/zero")


@hostile("'w'", "w.bin", "too short", "31 bytes")
def short_data(folder: Path) -> Path:
    return external_model(folder, data=GAIN[:-1])


@hostile("'w'", "too short")
def offset_past_the_end(folder: Path) -> Path:
    return external_model(folder, offset=2**62, data=GAIN)


@hostile("negative", "'w'")
def negative_offset(folder: Path) -> Path:
    return external_model(folder, offset=-4, data=GAIN)


@hostile("'four'")
def offset_that_is_no_number(folder: Path) -> Path:
    return external_model(folder, offset="four", data=GAIN)


@hostile("'w'", "16 bytes", "32 bytes")
def wrong_length(folder: Path) -> Path:
    return external_model(folder, length=16, data=GAIN)


@hostile("'w'", "not a file name")
def no_location(folder: Path) -> Path:
    return external_model(folder, "", data=GAIN)

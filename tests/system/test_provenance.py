"""What reports say of their making: files by their SHA-256, versions, the command, the date."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.system.provenance import (
    FileState,
    file_states,
    piped_in,
    provenance,
    utc_now,
)


def state(path: str, data: bytes) -> FileState:
    return FileState(path, len(data), hashlib.sha256(data).hexdigest())


def test_a_record_names_everything_that_an_audit_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in (("a/in", b"one"), ("b/out", b"three")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    read = file_states([tmp_path / "a/in", tmp_path / "gone"])
    made = provenance([*read, piped_in(b"two")], [tmp_path / "b/out"], "optimize")
    assert made.tool == f"rmsnorm-export {rx.__version__}"
    assert {"onnx", "onnx-ir", "numpy"} <= set(made.versions)
    assert made.command == "optimize"
    assert made.date.endswith("+00:00")
    assert made.inputs == (state(str(tmp_path / "a/in"), b"one"), state("-", b"two"))
    assert made.outputs == (state(str(tmp_path / "b/out"), b"three"),)
    monkeypatch.chdir(tmp_path)
    seen = made.seen_from(tmp_path / "b")
    assert [s.path for s in (*seen.inputs, *seen.outputs)] == ["../a/in", "-", "out"]
    monkeypatch.chdir(tmp_path / "b")
    assert made.seen_from(tmp_path / "b").inputs[0].path == str(tmp_path / "a/in")


def test_the_date_is_that_of_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert provenance((), (), "").date == "1970-01-02T00:00:00+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert utc_now().year > 2000

"""What reports say of their making, and whether their files are still those."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.system.provenance import FileState, piped_in, provenance, utc_now


def report(folder: Path, **states: tuple[FileState, ...]) -> Path:
    """A report about some files."""
    made = provenance((), ())
    body = {
        "schema_version": 1,
        "kind": "report",
        "provenance": {
            "tool": made.tool, "versions": made.versions, "python": made.python,
            "platform": made.platform, "date": made.date, "command": made.command,
            "inputs": [], "outputs": [],
        },
    }  # fmt: skip
    for key, known in states.items():
        body["provenance"][key] = [
            {"path": s.path, "bytes": s.bytes, "sha256": s.sha256} for s in known
        ]  # type: ignore[index]
    path = folder / "report.json"
    path.write_text(json.dumps(body))
    return path


def state(path: str, data: bytes) -> FileState:
    return FileState(path, len(data), hashlib.sha256(data).hexdigest())


def test_a_record_names_everything_that_an_audit_asks_for(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one")
    (tmp_path / "out").write_bytes(b"three")
    made = provenance([tmp_path / "in", piped_in(b"two"), tmp_path / "gone"], [tmp_path / "out"])
    assert made.tool == f"rmsnorm-export {rx.__version__}"
    assert {"onnx", "onnx-ir", "numpy"} <= set(made.versions)
    assert made.command == "Python API"
    assert made.date.endswith("+00:00")
    assert made.inputs == (state(str(tmp_path / "in"), b"one"), state("-", b"two"))
    assert made.outputs == (state(str(tmp_path / "out"), b"three"),)


def test_paths_are_relative_to_the_report_as_far_as_both_move_together(tmp_path: Path) -> None:
    for name in ("a/in", "b/out"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    made = provenance([tmp_path / "a/in", piped_in(b"")], [tmp_path / "b/out"])
    seen = made.seen_from(tmp_path / "b", tmp_path)
    assert [s.path for s in (*seen.inputs, *seen.outputs)] == ["../a/in", "-", "out"]
    alone = made.seen_from(tmp_path / "b", tmp_path / "b")
    assert [s.path for s in alone.inputs] == [str(tmp_path / "a/in"), "-"]


def test_a_file_under_two_names_is_hashed_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 100)
    os.link(tmp_path / "one", tmp_path / "two")
    hashed: list[Path] = []

    def sha256(path: Path) -> str:
        hashed.append(path)
        return "ab"

    made = provenance([tmp_path / "one"], [tmp_path / "two", tmp_path / "two"], sha256)
    assert hashed == [tmp_path / "one"]
    assert len(made.outputs) == 1


def test_the_date_is_that_of_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert utc_now().isoformat() == "1970-01-02T00:00:00+00:00"
    assert provenance((), ()).date == "1970-01-02T00:00:00+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert utc_now().year > 2000

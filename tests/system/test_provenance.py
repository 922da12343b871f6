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


def test_each_file_is_the_same_or_changed_or_missing(tmp_path: Path) -> None:
    for name in ("same", "longer", "other"):
        (tmp_path / name).write_bytes(b"new!" if name == "other" else name.encode())
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    known = tuple(state(name, b"same") for name in ("same", "longer", "other", "gone"))
    path = report(
        tmp_path, inputs=(*known, piped_in(b"")),
        outputs=(state("folder", b"same"), state("pipe", b"same")),
    )  # fmt: skip
    check = rx.check_report(path)
    assert [file.verdict for file in check.files] == [
        "same", "changed", "changed", "missing", "changed", "changed",
    ]  # fmt: skip
    assert [file.role for file in check.files] == ["input"] * 4 + ["output"] * 2
    assert not check.passed
    with pytest.raises(rx.VerificationError) as caught:
        check.require()
    for words in ("longer has 6 bytes, not 4", "other has other contents", "gone is not there"):
        assert words in caught.value.found
    good = rx.check_report(report(tmp_path, inputs=known[:1]))
    good.require()
    assert good.passed


def test_relative_paths_are_looked_for_beside_the_report_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, working = tmp_path / "beside", tmp_path / "working"
    for folder in (beside, working):
        folder.mkdir()
        (folder / "both").write_text(folder.name)
    (working / "one").write_text("working")
    monkeypatch.chdir(working)
    path = report(beside, inputs=(state("both", b"beside"), state("one", b"working")))
    assert rx.check_report(path).passed


def test_a_report_about_no_file_is_no_pass(tmp_path: Path) -> None:
    check = rx.check_report(report(tmp_path, inputs=(piped_in(b"x"),)))
    assert not check.passed
    with pytest.raises(rx.VerificationError, match="no file that could be compared"):
        check.require()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[1]", "it has no provenance"),
        ('{"kind": "report"}', "it has no provenance"),
        ('{"kind": "report", "provenance": {"tool": 1}}', "provenance.tool"),
        ('{"kind": "report", "provenance": 7}', "provenance"),
        ("[" * 100_000, ""),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(rx.InputError) as caught:
        rx.check_report(path)
    assert "r.json" in caught.value.found
    assert words in caught.value.found
    with pytest.raises(rx.InputError):
        rx.check_report(tmp_path / "gone.json")

"""``--report``: a file of its own that replaces nothing unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

COMMANDS = {
    "inspect": ("inspect", "three.onnx"),
    "optimize": ("optimize", "three.onnx", "-o", "out.onnx"),
    "verify": ("verify", "three.onnx", "three.onnx"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_existing_file_needs_force(
    run: Run,
    three: Path,  # noqa: ARG001 - the commands name it
    tmp_path: Path,
    command: tuple[str, ...],
) -> None:
    page = tmp_path / "r.html"
    page.write_text("mine")
    before = sorted(tmp_path.iterdir())
    run(*command, "--report", "r.html").assert_error(2, "r.html exists", "--force")
    assert page.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before  # nothing was written, the model neither
    assert run(*command, "--report", "r.html", "--force").code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("path", "code", "word"),
    [
        ("-", 2, "needs a file"),
        ("three.onnx", 2, "would overwrite a model"),
        ("./three.onnx", 2, "would overwrite a model"),
        ("missing/r.html", 3, "no folder missing"),
        (".", 3, "is a folder"),
    ],
)
def test_a_page_that_cannot_be(
    run: Run, three: Path, command: tuple[str, ...], path: str, code: int, word: str
) -> None:
    before = three.read_bytes()
    run(*command, "--force", "--report", path).assert_error(code, word)
    assert three.read_bytes() == before
    assert sorted(p.name for p in three.parent.iterdir()) == ["three.onnx"]


def test_a_full_disk_leaves_nothing(
    run: Run, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rmsnorm_export.system.files.Transaction.publish", full)
    run("inspect", three, "--report", "r.html").assert_error(3, "No space left on device")
    assert [p.name for p in tmp_path.iterdir()] == ["three.onnx"]


def test_what_is_no_plain_file_is_written_to(run: Run, three: Path) -> None:
    assert run("inspect", three, "--report", "/dev/null").code == 0

"""``--html``: the page as a file, under the rules of ``--report``."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.cli import files
from rmsnorm_export.proof.result import Proof

from .conftest import Run, model


def test_optimize_writes_a_page(run: Run, mixed: Path, tmp_path: Path) -> None:
    done = run("optimize", mixed, "-o", "out.onnx", "--html", "r.html", "--prove")
    assert (done.code, done.stderr) == (0, "")
    page = Path("r.html").read_text(encoding="utf-8")
    for words in ("2 of 3 RMSNorms are one node", "epsilon-not-constant", "out.onnx (", "onnx-ir "):
        assert words in page, words
    assert page.count('<svg class="graph"') == 2
    assert "2 of 2" in page  # proofs
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mixed.onnx", "out.onnx", "r.html"]


def test_the_page_changes_nothing_else(run: Run, three: Path) -> None:
    plain = run("optimize", three, "-o", "a.onnx")
    with_page = run("optimize", three, "-o", "b.onnx", "--html", "r.html")
    first, second = (
        [line for line in done.text.splitlines() if " s" not in line and "wrote" not in line]
        for done in (plain, with_page)
    )
    assert first == second
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_page_report_and_document_together(run: Run, three: Path) -> None:
    done = run(
        *("optimize", three, "-o", "out.onnx", "--format", "json"),
        *("--report", "r.txt", "--html", "r.html"),
    )
    assert done.code == 0
    assert [site["drawing"] for site in done.json["fused"]] == [0, 0, 0]
    assert Path("r.txt").read_text().startswith("3 of 3")
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>\n")


def test_inspect_writes_a_page_of_what_can_be(run: Run, mixed: Path) -> None:
    done = run("inspect", mixed, "--html", "r.html")
    assert (done.code, done.stderr) == (0, "")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "2 of 3 RMSNorms can be one node" in page
    assert "cannot become one node" in page
    assert page.count('<svg class="graph"') == 2


def test_what_is_about_no_model_has_a_page(run: Run, three: Path) -> None:
    assert run("optimize", three, "-o", "o.onnx", "--report", "r.json", "-q").code == 0
    for command, title in (("doctor", "rmsnorm-export"), ("check r.json", "r.json")):
        done = run(*command.split(), "--html", "page.html", "--report", "page.txt", "--force")
        assert (done.code, done.stderr) == (0, "")
        page = Path("page.html").read_text(encoding="utf-8")
        assert page.startswith("<!DOCTYPE html>\n")
        assert title in page
        assert title in Path("page.txt").read_text(encoding="utf-8")


def test_a_model_from_stdin(run: Run, three: Path) -> None:
    done = run("inspect", "-", "--html", "r.html", stdin=three.read_bytes())
    assert done.code == 0
    assert "stdin" in Path("r.html").read_text()
    piped = run("optimize", three, "-o", "-", "--html", "s.html")
    assert piped.code == 0
    assert onnx.load_from_string(piped.stdout)
    assert Path("s.html").exists()


def test_verify_writes_a_page_when_models_agree_and_when_not(run: Run, three: Path) -> None:
    assert run("verify", three, three, "--html", "r.html").code == 0
    assert "The models agree: 1 of 1 output within bounds" in Path("r.html").read_text()
    onnx.save(model(3, scale=1.01), "other.onnx")
    done = run("verify", three, "other.onnx", "--html", "s.html")
    done.assert_error(4, "differ")
    page = Path("s.html").read_text()
    assert "The models differ by more than is allowed" in page
    assert "see the table for where" in page
    assert 'class="hist"' in page


def test_an_unmet_requirement_is_on_the_page(run: Run, mixed: Path) -> None:
    done = run("optimize", mixed, "-o", "out.onnx", "--require", "all", "--html", "r.html")
    done.assert_error(5, "--require all")
    assert not Path("out.onnx").exists()
    page = Path("r.html").read_text()
    assert "--require all is not met" in page
    assert "nothing was written" in page


def test_a_failed_proof_is_on_the_page(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Proof(False, "distance: 9 ulp", (), 9.0, 1.0, 1.0, 1.0, 1.0, 3.0, "a test")
    monkeypatch.setattr("rmsnorm_export.proof.prove.prove_site", lambda *_, **__: failed)
    done = run("optimize", three, "-o", "out.onnx", "--prove", "--html", "r.html")
    done.assert_error(4, "3 proofs failed")
    page = Path("r.html").read_text()
    assert "proof-failed" in page
    assert "distance: 9 ulp" in page


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
    run(*command, "--html", "r.html").assert_error(2, "r.html exists", "--force")
    assert page.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before  # nothing was written, the model neither
    assert run(*command, "--html", "r.html", "--force").code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("path", "code", "word"),
    [
        ("-", 2, "--html -"),
        ("three.onnx", 2, "--html would overwrite"),
        ("./three.onnx", 2, "--html would overwrite"),
        ("missing/r.html", 3, "no folder missing"),
        (".", 3, "is a folder"),
    ],
)
def test_a_page_that_cannot_be(
    run: Run, three: Path, command: tuple[str, ...], path: str, code: int, word: str
) -> None:
    before = three.read_bytes()
    run(*command, "--force", "--html", path).assert_error(code, word)
    assert three.read_bytes() == before
    assert sorted(p.name for p in three.parent.iterdir()) == ["three.onnx"]


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_the_page_is_no_other_file_of_the_command(run: Run, three: Path, option: str) -> None:
    outputs = {"-o": "out.onnx", "--report": "r.json"} | {option: "same"}
    arguments = [word for pair in outputs.items() for word in pair]
    done = run("optimize", three, *arguments, "--html", "same")
    done.assert_error(2, "--html would overwrite a model or another report")
    assert not Path("same").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_may_not_be_written(run: Run, three: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    run("inspect", three, "--html", folder / "r.html").assert_error(3, "r.html")


def test_a_full_disk_leaves_nothing(
    run: Run, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rmsnorm_export.system.files.Transaction.publish", full)
    run("inspect", three, "--html", "r.html").assert_error(3, "No space left on device")
    assert [p.name for p in tmp_path.iterdir()] == ["three.onnx"]


def test_what_is_no_plain_file_is_written_to(run: Run, three: Path) -> None:
    assert run("inspect", three, "--html", "/dev/null").code == 0


def test_no_file_no_size() -> None:
    assert files.file_size("not-there.onnx") == []
    assert files.file_size("a\0b") == []

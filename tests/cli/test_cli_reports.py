"""Reports that can be audited: the files that they are about, and that none is lost."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from tests import warm
from tests.sample import crossed

from .conftest import Run, model


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(states: list[dict[str, Any]]) -> set[str]:
    """Return the paths of files that are there, with their size and hash."""
    for state in states:
        path = Path(state["path"])
        assert (state["bytes"], state["sha256"]) == (path.stat().st_size, sha256(path))
    return {state["path"] for state in states}


def test_a_report_names_its_files_with_their_data_and_how_it_was_made(
    run: Run, tmp_path: Path
) -> None:
    source = model(2)
    convert_model_to_external_data(source, location="w.bin", size_threshold=0)
    onnx.save(source, tmp_path / "big.onnx")
    (tmp_path / "out").mkdir()
    arguments = ("optimize", "big.onnx", "-o", "out/f.onnx", "--report", "out/f.json")
    assert run(*arguments, "--report", "f.html", "--weights", "copy").code == 0
    made = json.loads((tmp_path / "out/f.json").read_text())["provenance"]
    read = {str(tmp_path / "big.onnx"), str(tmp_path / "w.bin")}
    written = {str(tmp_path / f"out/f.onnx{end}") for end in ("", ".data")}
    assert (files(made["inputs"]), files(made["outputs"])) == (read, written)
    assert made["command"].startswith("rmsnorm-export optimize big.onnx -o out/f.onnx --report ")
    assert made["versions"]["onnx"] == onnx.__version__
    page = (tmp_path / "f.html").read_text()
    digests = sha256(tmp_path / "big.onnx"), sha256(tmp_path / "out/f.onnx")
    for words in (*digests, "--weights copy", made["date"]):
        assert words in page


def test_a_replaced_input_is_named_as_it_was(run: Run, three: Path) -> None:
    before = sha256(three)
    done = run("optimize", three, "-o", three, "--force", "--format", "json")
    assert done.code == 0
    assert sha256(three) != before
    made = done.json["provenance"]
    assert made["inputs"][0]["sha256"] == before
    assert made["outputs"][0]["sha256"] == sha256(three)


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyError("x")])
def test_a_page_that_cannot_be_made_loses_no_report(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise problem

    monkeypatch.setattr("rmsnorm_export.show.to_html", fails)
    arguments = ("optimize", three, "--report", "o.html", "--report", "o.json", "--format", "json")
    done = run(*arguments, "-o", "o.onnx")
    done.assert_error(3 if isinstance(problem, OSError) else 1, "--report o.html")
    assert "--report o.html: " in done.json["error"]["what"]
    written = json.loads(three.with_name("o.json").read_text())
    assert len(done.json["fused"]) == len(written["fused"]) == 3
    assert onnx.load(three.with_name("o.onnx")).graph.node


COMMANDS = (
    "optimize three.onnx -o o.onnx",
    "inspect three.onnx",
    "verify three.onnx three.onnx",
    "check three.onnx",
    "package three.onnx -o models",
    "deploy p.toml",
    "plugin lines three.onnx",
    "build three.onnx -o three.engine",
    "bench three.onnx --target portable --seconds 0.1 --threads 1",
    "doctor",
    "export asks:make -o e.onnx --verify --shapes x=f32[2,8]",
)
ASKS = """
import torch

def make():
    try:
        answer = input()
    except (EOFError, RuntimeError):  # RuntimeError: the stream is not there
        answer = "nobody there"
    assert answer == "nobody there"
    return torch.nn.RMSNorm(8)
"""


@pytest.mark.export
@crossed(2, stdin=["closed", "filled"], command=COMMANDS)
def test_stdin_is_left_alone(three: Path, command: str, stdin: str) -> None:
    """A program that reads stdin would move the position of the file behind it."""
    folder, lines, arguments = three.parent, "y\n" * 50, command.split()
    (folder / "asks.py").write_text(ASKS)
    pipeline = '[pipeline]\nname = "p"\n[model]\npath = "three.onnx"\n[optimize]'
    (folder / "p.toml").write_text(pipeline)
    (folder / "answers").write_text(lines)
    with (folder / "answers").open() as answers:
        if stdin == "closed":
            program = [sys.executable, "-m", "rmsnorm_export", *arguments]
            shell = ["sh", "-c", 'exec "$@" <&-', "sh"]
            done = subprocess.run(
                [*shell, *program], stdin=answers, cwd=folder, capture_output=True, text=True
            )
        else:
            imports = warm.EXPORT if arguments[0] == "export" else warm.USUAL
            stream = answers.fileno()
            done = warm.run(warm.COMMAND, *arguments, folder=folder, stdin=stream, imports=imports)
        assert answers.read() == lines
    assert done.returncode in (0, 2, 3, 6), done.stderr
    assert "Traceback" not in done.stderr

"""Reports that can be audited: what they say of their making, and that none is lost."""

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


def files(known: list[dict[str, Any]], folder: Path) -> dict[str, tuple[int, str]]:
    """Path -> size and hash, of files that are there and are so."""
    for state in known:
        path = folder / state["path"]
        assert (state["bytes"], state["sha256"]) == (path.stat().st_size, sha256(path))
    return {state["path"]: (state["bytes"], state["sha256"]) for state in known}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model whose scales are in ``w.bin``."""
    made = model(2)
    convert_model_to_external_data(made, location="w.bin", size_threshold=0)
    onnx.save(made, tmp_path / "big.onnx")
    return tmp_path / "big.onnx"


def test_a_report_names_its_files_with_their_data_and_how_it_was_made(
    run: Run, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    arguments = ("optimize", "big.onnx", "-o", "out/f.onnx", "--report", "out/f.json")
    assert run(*arguments, "--report", "f.html", "--weights", "copy").code == 0
    made = json.loads((tmp_path / "out/f.json").read_text())["provenance"]
    assert set(files(made["inputs"], tmp_path / "out")) == {"../big.onnx", "../w.bin"}
    outputs = files(made["outputs"], tmp_path / "out")
    assert "f.onnx" in outputs
    assert len(outputs) == 2
    assert made["command"].startswith("rmsnorm-export optimize big.onnx -o out/f.onnx --report ")
    assert made["versions"]["onnx"] == onnx.__version__
    assert made["date"].endswith("+00:00")
    page = (tmp_path / "f.html").read_text()
    for words in (sha256(weights), sha256(tmp_path / "out/f.onnx"), "--weights copy", made["date"]):
        assert words in page


def test_the_input_is_replaced_only_where_that_is_asked_for(run: Run, three: Path) -> None:
    before = (three.stat().st_size, sha256(three))
    run("optimize", three, "-o", three).assert_error(2, "The output is the input file", "--force")
    assert (three.stat().st_size, sha256(three)) == before
    done = run("optimize", three, "-o", three, "--force", "--format", "json")
    assert done.code == 0
    assert sha256(three) != before[1]
    made = done.json["provenance"]
    assert (made["inputs"][0]["bytes"], made["inputs"][0]["sha256"]) == before
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
    assert len(done.json["fused"]) == 3
    assert "--report o.html: " in done.json["error"]["what"]
    written = json.loads(three.with_name("o.json").read_text())
    assert len(written["fused"]) == 3
    assert onnx.load(three.with_name("o.onnx")).graph.node


def test_a_verification_that_crashes_loses_no_report(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="exports: pip install '.[torch]'")
    pytest.importorskip("onnxscript", reason="exports: pip install '.[torch]'")
    (tmp_path / "made_here.py").write_text(
        "import torch\ndef make():\n    return torch.nn.RMSNorm(8), (torch.ones(2, 8),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def crashes(*_: object, **__: object) -> None:
        raise RuntimeError("driver gone")

    monkeypatch.setattr("rmsnorm_export.compare.source.compare_file", crashes)
    done = run("export", "made_here:make", "-o", "e.onnx", "--verify", "--format", "json")
    done.assert_error(1, "--verify", "driver gone")
    assert len(done.json["fused"]) == 1
    assert done.json["output"]["path"] == str(tmp_path / "e.onnx")
    assert [Path(s["path"]).name for s in done.json["provenance"]["inputs"]] == ["made_here.py"]


COMMANDS = (
    ("optimize", "three.onnx", "-o", "o.onnx"),
    ("inspect", "three.onnx"),
    ("verify", "three.onnx", "three.onnx"),
    ("package", "three.onnx", "-o", "models"),
    ("deploy", "p.toml"),
    ("plugin", "lines", "three.onnx"),
    ("build", "three.onnx", "-o", "three.engine"),
    ("bench", "three.onnx", "--target", "portable", "--seconds", "0.1", "--threads", "1"),
    ("doctor",),
    ("export", "asks:make", "-o", "e.onnx", "--verify", "--shapes", "x=f32[2,8]"),
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
@crossed(2, stdin=["closed", "filled"], arguments=COMMANDS)
def test_stdin_is_left_alone(three: Path, arguments: tuple[str, ...], stdin: str) -> None:
    """A program that reads stdin would move the position of the file behind it."""
    folder, lines = three.parent, "y\n" * 50
    (folder / "asks.py").write_text(ASKS)
    (folder / "p.toml").write_text(
        '[pipeline]\nname = "p"\n[model]\npath = "three.onnx"\n[optimize]'
    )
    (folder / "answers").write_text(lines)
    with (folder / "answers").open() as answers:
        if stdin == "closed":
            program = [sys.executable, "-m", "rmsnorm_export", *arguments]
            done = subprocess.run(
                ["sh", "-c", 'exec "$@" <&-', "sh", *program],
                stdin=answers, capture_output=True, text=True, cwd=folder, timeout=300, check=False,
            )  # fmt: skip
        else:
            imports = warm.EXPORT if arguments[0] == "export" else warm.USUAL
            stream = answers.fileno()
            done = warm.run(warm.COMMAND, *arguments, folder=folder, stdin=stream, imports=imports)
        assert answers.read() == lines
    assert done.returncode in (0, 2, 3, 6), done.stderr
    assert "Traceback" not in done.stderr

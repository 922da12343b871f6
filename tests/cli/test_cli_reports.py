"""Reports that can be audited: the files that they are about, and that none is lost."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from tests import warm

from .conftest import Run, model


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(states: list[dict[str, Any]]) -> set[str]:
    """Return the paths of files that are there, with their size and hash."""
    for state in states:
        path = Path(state["path"])
        assert (state["bytes"], state["sha256"]) == (path.stat().st_size, sha256(path))
    return {state["path"] for state in states}


def test_a_report_names_its_files_and_how_it_was_made(run: Run, tmp_path: Path) -> None:
    source = model(2)
    convert_model_to_external_data(source, location="w.bin", size_threshold=0)
    onnx.save(source, tmp_path / "big.onnx")
    (tmp_path / "out").mkdir()
    arguments = ("optimize", "big.onnx", "-o", "out/f.onnx", "--report", "out/f.json")
    assert run(*arguments, "--report", "f.html", "--weights", "copy").code == 0
    provenance = json.loads((tmp_path / "out/f.json").read_text())["provenance"]
    read = {str(tmp_path / "big.onnx"), str(tmp_path / "w.bin")}
    written = {str(tmp_path / f"out/f.onnx{end}") for end in ("", ".data")}
    assert (files(provenance["inputs"]), files(provenance["outputs"])) == (read, written)
    command = "rmsnorm-export optimize big.onnx -o out/f.onnx --report "
    assert provenance["command"].startswith(command)
    assert provenance["versions"]["onnx"] == onnx.__version__
    page = (tmp_path / "f.html").read_text()
    for words in (sha256(tmp_path / "big.onnx"), "--weights copy", provenance["date"]):
        assert words in page


def test_a_report_is_named_and_the_next_run_replaces_it(run: Run, three: Path) -> None:
    ends = ("html", "json", "txt", "")
    names = [f"r.{end}".rstrip(".") for end in ends]
    arguments = ["inspect", three, *(word for name in names for word in ("--report", name))]
    for _ in range(2):
        done = run(*arguments)
        assert done.code == 0, done.stderr
        assert done.text.splitlines()[-4:] == [f"wrote {three.parent / name}" for name in names]
    for name in names:
        (three.parent / name).write_text("mine")
        run("inspect", three, "--report", name).assert_error(2, "exists already")
        assert (three.parent / name).read_text() == "mine"


def test_a_replaced_input_is_named_as_it_was(run: Run, three: Path) -> None:
    before = sha256(three)
    done = run("optimize", three, "-o", three, "--force", "--format", "json")
    assert done.code == 0
    assert sha256(three) != before
    provenance = done.json["provenance"]
    assert provenance["inputs"][0]["sha256"] == before
    assert provenance["outputs"][0]["sha256"] == sha256(three)


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


ASKS = """
import torch
print("loud at import")
def make():
    try:
        answer = input()
    except (EOFError, RuntimeError):  # RuntimeError: the stream is not there
        answer = "nobody there"
    assert answer == "nobody there"
    return torch.nn.RMSNorm(8)
"""


FROM_A_FILE = """
import os, sys
os.dup2(os.open("answers", os.O_RDONLY), 0)
sys.stdin = open(0, closefd=False)
from rmsnorm_export.cli.main import main
code = main(sys.argv[1:])
assert os.lseek(0, 0, os.SEEK_CUR) == 0, "its position was moved"
sys.exit(code)
"""


@pytest.mark.export
@pytest.mark.parametrize("closed", [False, True])
def test_stdin_is_left_alone(tmp_path: Path, closed: bool) -> None:
    """A program that reads stdin would move the position of the file behind it."""
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "answers").write_text("y\n" * 50)
    words = ["export", "asks:make", "--shapes", "x=f32[2,8]", "-o", "e.onnx", "--verify"]
    if closed:
        command = f"{shlex.join([sys.executable, '-m', 'rmsnorm_export', *words])} <&-"
        how = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(command, shell=True, **how)
    else:
        done = warm.run(FROM_A_FILE, *words, folder=tmp_path)
    assert (done.returncode, done.stderr, "loud" in done.stdout) == (0, "", False)


def test_the_health_of_a_file_on_given_and_on_random_inputs(run: Run, three: Path) -> None:
    drawn = run("inspect", three, "--health")
    assert "in half precision, inputs: random, seed 0: " in drawn.text
    ports = onnx.load(three).graph.input
    sizes = [[d.dim_value or 2 for d in one.type.tensor_type.shape.dim] for one in ports]
    arrays = {one.name: np.full(s, 300, np.float32) for one, s in zip(ports, sizes, strict=True)}
    np.savez(three.parent / "x.npz", **arrays)
    given = run("inspect", three, "--inputs", "x.npz", "--format", "json").json
    runs = [(one["inputs"], one["op"]) for one in given["health_runs"]]
    assert runs == [("x.npz", "Pow"), ("x.npz", "Pow"), ("x.npz", "")]
    names = {Path(one["path"]).name for one in given["provenance"]["inputs"]}
    assert names == {"three.onnx", "x.npz"}  # 300 * 300 is no float16
    run("inspect", three, "--health", "--inputs", "no.npz").assert_error(3, "no.npz")

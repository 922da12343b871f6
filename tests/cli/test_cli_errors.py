"""Errors of all commands: an exit code, three lines that say what is wrong, nothing changed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graph.folders import snapshot

from rmsnorm_export.errors import BackendMissingError, RequirementError
from tests.engine.conftest import needs_rtx
from tests.tools.tables import table

from .conftest import Run, model

TABLE = table(__file__)
WITHOUT_CUDA = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime has CUDA",
)
CUDA = (6, "bench three.onnx --provider cuda", "pip install 'onnxruntime-gpu")
CASES = [
    *((2, *case) for case in TABLE["usage"]),
    *((3, *case) for case in TABLE["input"]),
    (3, f"optimize three.onnx -o {'x' * 300}", "name too long"),
    *map(tuple, TABLE["others"]),
    pytest.param(CUDA, marks=WITHOUT_CUDA),
    *(pytest.param((2, *case), marks=needs_rtx) for case in TABLE["engines"]),
]


@pytest.fixture
def folder(tmp_path: Path, three: Path, mixed: Path) -> Path:  # noqa: ARG001 (they are in it)
    """A folder with what the commands name."""
    onnx.save(model(3, scale=1.01), tmp_path / "other.onnx")
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 41), np.float32))
    onnx.save(model(3, n=41), tmp_path / "wide.onnx")
    fixed = model(1)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(fixed, tmp_path / "fixed.onnx")
    for name in ("taken.onnx", "taken.py", "taken.txt", "notes.txt"):
        (tmp_path / name).write_text("precious")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    (tmp_path / "wrong.toml").write_text(
        '[pipeline]\nname = "net"\n[model]\npath = "three.onnx"\n[optimize]\nnumeric = "exact"'
    )
    (tmp_path / "e.json").write_text("mine")
    (tmp_path / "locked").mkdir()
    (tmp_path / "models/three/1").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_three_lines_and_changes_nothing(
    run: Run, folder: Path, case: tuple[int | str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{folder}.cache")
    # root may write anywhere, so the system is asked in its stead
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in str(path))
    code, command, *words = case
    before = snapshot(folder)
    done = run(*shlex.split(str(command)))
    done.assert_error(int(code), *map(str, words))
    assert "\x1b" not in done.stderr
    as_json = run(*shlex.split(str(command)), "--format", "json")
    as_json.assert_error(int(code))
    assert as_json.json.get("error", as_json.json)["exit_code"] == code
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BackendMissingError("No runtime.", fix="pip install y"), 6, "pip install y"),
        (RequirementError("Too few.", found="nothing", fix="more norms"), 5, "Too few"),
        (ModuleNotFoundError("No", name="onnxruntime.capi"), 6, "pip install 'onnxruntime>="),
        (MemoryError(), 1, "Out of memory"),
        (PermissionError(13, "Permission denied", "/some/where"), 3, "/some/where"),
        (OSError(28, "No space left on device"), 3, "No space left"),
        (KeyError("secret\x1b[2J\nline"), 1, "KeyError"),
    ],
)
def test_any_exception_is_three_lines(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, words: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rmsnorm_export.api.inspect", broken)
    done = run("inspect", three)
    done.assert_error(code, words)
    assert "\x1b" not in done.stderr
    debug = run("inspect", three, "--debug").stderr
    assert "Traceback (most recent call last)" in debug
    assert debug.splitlines()[-1].startswith("fix: ")


@pytest.mark.parametrize("command", ["build", "package"])
def test_an_engine_and_a_folder_do_not_go_to_stdout(run: Run, three: Path, command: str) -> None:
    run(command, three, "-o", "-").assert_error(2, "cannot be written to stdout", "a path after -o")
    assert "stdout" not in run(command, "--help").text

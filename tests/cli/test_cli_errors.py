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

from .conftest import Run, model

LONG = "x" * 300
USAGE = [
    ("optimise", "optimise", "'optimize'"),
    ("optimize m.onnx -o o.onnx --target cuda", "cuda"),
    ("optimize three.onnx -o o.onnx --for onnxruntim", "in the table are onnxruntime"),
    ("optimize three.onnx -o taken.onnx", "taken.onnx", "--force"),
    ("optimize three.onnx -o ./three.onnx", "would replace the model that is read", "--force"),
    ("optimize three.onnx -o o.onnx --target tensorrt@10.13", "use --for tensorrt"),
    ("optimize three.onnx -o o.onnx --for onnxruntime@banana", "onnxruntime@VERSION: 1.15"),
    ("three.onnx", "A command has to come before", "inspect three.onnx"),
    ("inspect three.onnx --report r.pdf", "no such kind of report", ".html"),
    ("inspect three.onnx --report taken.txt", "exists already", "--force"),
    ("optimize three.onnx -o o.onnx --target plain --site head", "'head'"),
    ("inspect three.onnx --report -", "needs a file"),
    ("inspect three.onnx --report ./three.onnx --force", "would overwrite a model"),
    ("inspect three.onnx --report new --report new", "would overwrite a model or another report"),
    ("optimize three.onnx -o o.onnx --report o.onnx --force", "would overwrite a model"),
    ("verify a b --shapes x", "NAME"),
    ("verify three.onnx three.onnx --shapes z=3x40", "no input 'z'"),
    ("verify three.onnx three.onnx --shapes z=2,7,40", "no input 'z'"),
    ("verify three.onnx three.onnx --shapes x=2,40", "for one shape", "write x=2x40"),
    ("verify three.onnx three.onnx --shapes 2x40", "NAME=2x40"),
    ("verify fixed.onnx fixed.onnx --dims rows=2", "no dimension 'rows'", "every size is fixed"),
    ("verify three.onnx three.onnx --backend-b onnxruntim", "--backend-b", "'onnxruntime'"),
    ("verify three.onnx wide.onnx", "'x' float32 [rows, 40]", "B: 'x' float32 [rows, 41]"),
    ("verify three.onnx mixed.onnx", "no such 'eps_input' as B", "'x' float32 [rows, 40]"),
    ("verify three.onnx three.onnx --shapes x=3 --inputs wrong.npz", "shapes with inputs"),
    ("bench three.onnx --seconds 0", "above 0"),
    ("bench three.onnx --shapes x=4x7", "does not fit input 'x'"),
    ("bench three.onnx --target none", "nothing to compare"),
    ("bench three.onnx --target potable,ort", "'portable'"),
    ("package three.onnx -o n --name ../x", "name of the model"),
    ("package three.onnx -o models", "is taken", "this tool did not make it"),
    ("build three.onnx -o e", "e.json", "--force"),
    ("deploy wrong.toml", "In wrong.toml, [optimize] numeric", "did you mean 'numerics'?"),
    ("deploy --init new.toml --report r.txt", "--init goes with"),
    ("deploy wrong.toml --report wrong.toml --force", "would overwrite a model"),
    ("export three.onnx -o o.onnx", "exported already", "optimize three.onnx"),
    ("export taken.py -o o.onnx", "taken.py:NAME"),
    ("verify three.onnx taken.txt --generate 4", "A is three.onnx, B taken.txt"),
    ("export m:f -o o.onnx --static-cache 8", "--static-cache is for --task generation"),
    ("doctor 'a\x1b[2J'", "\\x1b[2J"),
]
INPUT = [
    ("inspect none.onnx neither.onnx", "none.onnx"),
    ("verify three.onnx three.onnx --inputs missing.npz", "missing.npz"),
    ("verify three.onnx three.onnx --inputs wrong.npz", "41"),
    ("verify three.onnx three.onnx --inputs notes.txt", "no .npz archive", "numpy.savez"),
    ("inspect hf", "a config.json, and no graph", "rmsnorm-export export hf -o OUT"),
    ("deploy three.onnx", "deploy --init pipeline.toml"),
    ("optimize three.onnx -o absent/o.onnx", "does not exist", "mkdir -p "),
    ("inspect taken.py:make", "rmsnorm-export export makes"),
    ("optimize hf/config.json -o o.onnx", "rmsnorm-export export makes"),
    ("optimize three.onnx -o o.onnx --opset 99", "the newest opset that onnx"),
    ("optimize three.onnx -o .", "is a folder", "the name of a file in it"),
    (f"optimize three.onnx -o {LONG}", "name too long"),
    ("optimize three.onnx -o locked/o.onnx", "no permission"),
    ("inspect three.onnx --report missing/r.html", "does not exist", "missing"),
    ("inspect three.onnx --report .", "is a folder"),
    ("package none.onnx -o n", "No such file"),
    ("package three.onnx -o no/such", "repository"),
    ("package three.onnx -o taken.onnx", "taken.onnx: Not a directory"),
    ("export absent.py:make -o o.onnx", "file of the factory is missing", "absent.py"),
    ("deploy none.toml", "pipeline file cannot be read"),
    ("build three.onnx -o no/where", "does not exist"),
]
WITHOUT_CUDA = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime has CUDA",
)
OTHERS = [
    (5, "inspect three.onnx --require 4", "3 norms can be one node", "or require less"),
    (5, "inspect mixed.onnx --require all --target ort", "epsilon-not-constant"),
    (5, "optimize mixed.onnx -o o.onnx --require 3", "--require 3", "2 norms"),
    (4, "verify three.onnx other.onnx", "out: largest difference"),
    pytest.param(
        (6, "bench three.onnx --provider cuda", "pip install 'onnxruntime-gpu"), marks=WITHOUT_CUDA
    ),
]
ENGINES = [
    ("build three.onnx -o new", "'x' float32 [rows, 40]", "--shapes"),
    ("build three.onnx -o new --shapes z=1x40", "no input 'z'"),
    ("build three.onnx -o new --shapes x=1x40 --plugin require", "no plugin layers"),
    ("build three.onnx -o new --shapes x=1x40 --memory-limit 0", "0"),
]
CASES = [
    *((2, *case) for case in USAGE),
    *((3, *case) for case in INPUT),
    *OTHERS,
    *(pytest.param((2, *case), marks=needs_rtx) for case in ENGINES),
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

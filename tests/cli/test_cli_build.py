"""``build`` as a program: output, the record, reports and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.engine.backends import RTX

from .conftest import Run

needs_rtx = pytest.mark.skipif(
    not (is_installed("tensorrt_rtx") and is_installed("polygraphy")),
    reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}",
)
SHAPES = "x=1x40,4x40,128x40"


@needs_rtx
def test_json_is_the_record(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", SHAPES, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    document = done.json
    assert document["kind"] == "engine_result"
    record = json.loads((three.parent / "e.engine.json").read_text())
    assert record["kind"] == "engine_record"
    assert document["record"] == {
        key: value
        for key, value in record.items()
        if key not in ("schema_version", "kind", "provenance")
    }
    outputs = [file["path"] for file in record["provenance"]["outputs"]]
    assert outputs == ["e.engine"]


@needs_rtx
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, ("'x' float32 [rows, 40]", "--shapes")),
        (("--shapes", "z=1x40"), 2, ("no input 'z'",)),
        (("--shapes", SHAPES, "--plugin", "require"), 2, ("no plugin layers",)),
        (("--shapes", SHAPES, "--version-compatible"), 2, ("lean runtime",)),
        (("--shapes", SHAPES, "--memory-limit", "4 apples"), 2, ("4 apples",)),
        (("--shapes", SHAPES, "--memory-limit", "0"), 2, ("'0'",)),
        (("--shapes", SHAPES, "--optimization-level", "6"), 2, ("6",)),
        (("--backend", "onnx"), 2, ("onnx",)),
    ],
)
def test_mistakes(run: Run, three: Path, arguments, code: int, words) -> None:
    options = () if "--backend" in arguments else ("--backend", "tensorrt-rtx")
    done = run("build", three, "-o", "e.engine", *options, *arguments)
    done.assert_error(code, *words)
    assert [p.name for p in three.parent.iterdir()] == ["three.onnx"]


def test_no_backend(run: Run, three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "is_installed", lambda _: False)
    for backend in ("auto", "tensorrt", "tensorrt-rtx"):
        done = run("build", three, "-o", "e", "--backend", backend, "--shapes", SHAPES)
        done.assert_error(6, "pip install")
    done = run("build", three, "-o", "e", "--format", "json")
    assert done.code == 6
    assert done.json["kind"] == "error"
    assert done.json["exit_code"] == 6

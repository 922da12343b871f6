"""``build`` as a program: output, the record, reports and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
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
def test_text(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", SHAPES)
    assert (done.code, done.stderr) == (0, "")
    first, *rest = done.text.splitlines()
    assert first == "engine built: 3 of 3 RMSNorms in one kernel each: 3 fused"
    assert "  profile  x float32 1x40 / 4x40 / 128x40" in rest
    assert "  3 x  RMSNorm  chain  fused  1 kernel" in rest
    assert "/layers.{0-2}/norm/Mul_6" in done.text
    assert f"wrote {three.parent / 'e.engine'}" in rest
    assert {p.name for p in three.parent.iterdir()} == {"three.onnx", "e.engine", "e.engine.json"}
    quiet = run("build", three, "-o", "f.engine", "--shapes", SHAPES, "-q")
    assert quiet.text.splitlines() == [first]
    loud = run("build", three, "-o", "g.engine", "--shapes", SHAPES, "-v")
    assert loud.text.count("          __myl_") == 3


@needs_rtx
def test_json_is_the_record(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", SHAPES, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    document = done.json
    assert document["kind"] == "engine_result"
    record = json.loads((three.parent / "e.engine.json").read_text())
    assert record["kind"] == "engine_record"
    del record["schema_version"], record["kind"]
    assert document["record"] == record


@needs_rtx
def test_a_model_from_stdin_and_several_profiles(run: Run, three: Path) -> None:
    done = run(
        "build", "-", "-o", "e.engine", "--shapes", "x=1x40", "--shapes", SHAPES,
        "--memory-limit", "0.5", stdin=three.read_bytes(),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "profile 2  x float32 1x40 / 4x40 / 128x40" in done.text
    record = json.loads((three.parent / "e.engine.json").read_text())
    assert record["flags"]["memory_limit"] == 0.5


@needs_rtx
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, ("'x' float32 [rows, 40]", "--shapes")),
        (("--shapes", "z=1x40"), 2, ("no input 'z'",)),
        (("--shapes", "x=1x41"), 2, ("dimension 1 is 40",)),
        (("--shapes", "x=1x40,2x40"), 2, ("smallest, usual and largest",)),
        (("--shapes", SHAPES, "--plugin", "require"), 2, ("no plugin layers",)),
        (("--shapes", SHAPES, "--version-compatible"), 2, ("lean runtime",)),
        (("--shapes", SHAPES, "--memory-limit", "4 apples"), 2, ("4 apples",)),
        (("--shapes", SHAPES, "--memory-limit", "0"), 2, ("memory-limit",)),
        (("--shapes", SHAPES, "--optimization-level", "6"), 2, ("6",)),
        (("--backend", "onnx"), 2, ("onnx",)),
    ],
)
def test_mistakes(run: Run, three: Path, arguments, code: int, words) -> None:
    options = () if "--backend" in arguments else ("--backend", "tensorrt-rtx")
    done = run("build", three, "-o", "e.engine", *options, *arguments)
    done.assert_error(code, *words)
    assert [p.name for p in three.parent.iterdir()] == ["three.onnx"]


def test_an_output_that_cannot_be(run: Run, three: Path) -> None:
    run("build", three, "-o", "-").assert_error(2)
    run("build", three, "-o", "no/where").assert_error(3, "does not exist")
    (three.parent / "e.json").write_text("mine")
    run("build", three, "-o", "e").assert_error(2, "e.json", "--force")


def test_no_backend(run: Run, three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "is_installed", lambda _: False)
    for backend in ("auto", "tensorrt", "tensorrt-rtx"):
        done = run("build", three, "-o", "e", "--backend", backend, "--shapes", SHAPES)
        done.assert_error(6, "pip install")
    done = run("build", three, "-o", "e", "--format", "json")
    assert done.code == 6
    assert done.json["kind"] == "error"
    assert done.json["exit_code"] == 6


@needs_rtx
def test_the_caller_imports_no_backend(three: Path) -> None:
    code = (
        "import sys, os\nbefore = dict(os.environ)\n"
        "from rmsnorm_export.tensorrt.engine.build import build_engine\n"
        f"build_engine({str(three)!r}, {str(three.parent / 'e')!r}, shapes={SHAPES!r})\n"
        "print({'tensorrt_rtx', 'tensorrt', 'polygraphy'} & set(sys.modules))\n"
        "print(dict(os.environ) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "True"]

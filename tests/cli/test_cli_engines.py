"""``build`` as a program: an engine with its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.engine.conftest import needs_rtx

from .conftest import Run

SHAPES = "x=1x40,4x40,128x40"


@needs_rtx
def test_build(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", "x=1x40", "--shapes", SHAPES)
    assert (done.code, done.stderr) == (0, "")
    assert len(json.loads(three.with_name("e.engine.json").read_text())["profiles"]) == 2
    assert {p.name for p in three.parent.iterdir()} == {"three.onnx", "e.engine", "e.engine.json"}
    done = run(
        "build", "-", "-o", "f.engine", "--shapes", SHAPES, "--memory-limit", "0.5",
        "--format", "json", stdin=three.read_bytes(),
    )  # fmt: skip
    assert (done.code, done.stderr) == (0, "")
    written = json.loads(three.with_name("f.engine.json").read_text())
    assert (written.pop("kind"), written.pop("schema_version")) == ("engine_record", 1)
    assert done.json["record"] == written
    assert written["flags"]["memory_limit"] == 0.5


@needs_rtx
def test_the_caller_imports_no_backend(three: Path) -> None:
    code = (
        "import sys, os\nbefore = dict(os.environ)\n"
        "from rmsnorm_export.api import build_engine\n"
        f"build_engine({str(three)!r}, {str(three.parent / 'e')!r}, shapes={SHAPES!r})\n"
        "print({'tensorrt_rtx', 'tensorrt', 'polygraphy'} & set(sys.modules))\n"
        "print(dict(os.environ) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "True"]

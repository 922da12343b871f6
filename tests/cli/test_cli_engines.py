"""``build`` and ``check`` as programs: an engine with its record, and whether it can be used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.cli.main import main
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import gpu_visible

from .conftest import Run, model, needs_rtx

SHAPES = "x=1x40,4x40,128x40"
GOOD = "yes" if gpu_visible() else "unknown"
CODE = 0 if GOOD == "yes" else 7
"""Neither a pass nor a fault: only a GPU could tell."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine and its record, made by ``build``."""
    folder = tmp_path_factory.mktemp("engine")
    onnx.save(model(2), folder / "two.onnx")
    arguments = ["build", str(folder / "two.onnx"), "-o", str(folder / "e.engine"), "-q"]
    assert main([*arguments, "--backend", "tensorrt-rtx", "--shapes", SHAPES]) == 0
    return folder


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    """A copy of it, where ``run`` works."""
    for name in ("e.engine", "e.engine.json"):
        shutil.copy(built / name, tmp_path / name)
    return tmp_path / "e.engine"


@needs_rtx
def test_build(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", "x=1x40", "--shapes", SHAPES)
    assert (done.code, done.stderr) == (0, "")
    first, *rest = done.text.splitlines()
    assert first == "engine built: 3 of 3 RMSNorms in one kernel each: 3 fused"
    assert "  profile 2  x float32 1x40 / 4x40 / 128x40" in rest
    assert "3 x  RMSNorm   chain  fused  1        /layers.{0-2}/norm/Mul_6" in done.text
    assert {p.name for p in three.parent.iterdir()} == {"three.onnx", "e.engine", "e.engine.json"}
    done = run(
        "build", "-", "-o", "f.engine", "--shapes", SHAPES, "--memory-limit", "0.5",
        "--format", "json", stdin=three.read_bytes(),
    )  # fmt: skip
    assert (done.code, done.stderr, done.json["kind"]) == (0, "", "engine_result")
    written = json.loads(three.with_name("f.engine.json").read_text())
    assert (written.pop("kind"), written.pop("schema_version")) == ("engine_record", 1)
    assert done.json["record"] == written
    assert written["flags"]["memory_limit"] == 0.5


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


@needs_rtx
def test_a_good_engine(run: Run, engine: Path) -> None:
    before = {path.name: path.read_bytes() for path in engine.parent.iterdir()}
    version = json.loads(before["e.engine.json"])["version"]
    done = run("check", "e.engine")
    if CODE:
        done.assert_error(7, "could not be loaded here", "no GPU is visible", "a GPU")
    assert done.code == CODE
    first, *rest = done.text.splitlines()
    assert first.startswith(f"usable: {GOOD}; ")
    assert f"  built by TensorRT-RTX, version {version}; here: version {version}" in rest
    assert any(line.startswith("  from two.onnx, ") for line in rest)
    assert ("note: no GPU is visible: the engine was not loaded" in rest) is (GOOD == "unknown")
    assert {path.name for path in engine.parent.iterdir()} == set(before)
    assert engine.read_bytes() == before["e.engine"]
    as_json = run("check", ".", "--format", "json").json["results"]["e.engine"]
    assert (as_json["usable"], as_json["path"]) == (GOOD, str(engine))


@needs_rtx
def test_a_truncated_engine(run: Run, engine: Path) -> None:
    engine.write_bytes(engine.read_bytes()[:-9])
    done = run("check", "e.engine")
    done.assert_error(3, "its content differs")
    assert "usable: no" in done.text


@pytest.mark.skipif(is_installed("tensorrt"), reason="TensorRT is installed: nothing is lacking")
def test_a_backend_that_is_not_installed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trt.engine").write_bytes(b"ptrt" + bytes(500))
    done = run("check", "trt.engine", "--format", "json")
    done.assert_error(6, "TensorRT", "not installed", "pip install")
    assert (done.json["usable"], done.json["error"]["exit_code"]) == ("no", 6)

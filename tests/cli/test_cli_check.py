"""``check`` as a program: what it says of an engine, and the exit code that goes with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.cli.main import main
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX, gpu_visible

from .conftest import Outcome, Run, model

needs_rtx = pytest.mark.skipif(
    not (is_installed("tensorrt_rtx") and is_installed("polygraphy")),
    reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}",
)
GOOD = "yes" if gpu_visible() else "unknown"
CODE = 0 if GOOD == "yes" else 7
"""Neither a pass nor a fault: only a GPU could tell."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine and its record, made by ``build``."""
    folder = tmp_path_factory.mktemp("engine")
    onnx.save(model(2), folder / "two.onnx")
    arguments = ["build", str(folder / "two.onnx"), "-o", str(folder / "e.engine"), "-q"]
    arguments += ["--backend", "tensorrt-rtx", "--shapes", "x=1x40,4x40,16x40"]
    assert main(arguments) == 0
    return folder


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    """A copy of it, where ``run`` works."""
    for name in ("e.engine", "e.engine.json"):
        shutil.copy(built / name, tmp_path / name)
    return tmp_path / "e.engine"


def record(engine: Path, **changes: object) -> None:
    """Change the record."""
    path = engine.with_name("e.engine.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_good(done: Outcome) -> None:
    """Usable, or as good as can be told without a GPU, which is no pass."""
    if CODE:
        done.assert_error(7, "could not be loaded here", "no GPU is visible", "a GPU")
    else:
        assert (done.code, done.stderr) == (0, "")


@needs_rtx
def test_a_good_engine(run: Run, engine: Path) -> None:
    before = {path.name: path.read_bytes() for path in engine.parent.iterdir()}
    done = run("check", "e.engine")
    assert_good(done)
    first, *rest = done.text.splitlines()
    assert first.startswith(f"usable: {GOOD}; ")
    version = json.loads(before["e.engine.json"])["version"]
    assert f"  built by TensorRT-RTX, version {version}; here: version {version}" in rest
    assert any(line.startswith("  from two.onnx, ") for line in rest)
    assert "problem:" not in done.text
    assert ("note: no GPU is visible: the engine was not loaded" in rest) is (GOOD == "unknown")
    assert run("check", "e.engine", "-q").text.splitlines() == [first]
    assert {path.name: path.read_bytes() for path in engine.parent.iterdir()} == before


@needs_rtx
def test_json(run: Run, engine: Path) -> None:
    done = run("check", "e.engine", "--format", "json")
    assert (done.code, done.json["kind"], done.json["usable"]) == (CODE, "engine_check", GOOD)
    assert ("error" in done.json) is (CODE == 7)
    assert done.json["built_with"] == done.json["installed"]
    assert done.json["path"] == str(engine)


@needs_rtx
@pytest.mark.parametrize("part", [0.0, 0.99])
def test_a_truncated_engine(run: Run, engine: Path, part: float) -> None:
    data = engine.read_bytes()
    engine.write_bytes(data[: int(len(data) * part)])
    done = run("check", "e.engine")
    done.assert_error(3, "its content differs")
    assert "usable: no" in done.text


@needs_rtx
def test_an_engine_cut_inside_its_header_without_a_record(run: Run, engine: Path) -> None:
    engine.with_name("e.engine.json").unlink()
    engine.write_bytes(engine.read_bytes()[:40])
    run("check", "e.engine").assert_error(3, "damaged")


@needs_rtx
@pytest.mark.skipif(gpu_visible(), reason="a GPU is visible: the engine is loaded, and refused")
def test_what_only_loading_would_show_is_unknown(run: Run, engine: Path) -> None:
    """Without record and GPU the backend reads the header only, and a cut behind it is not seen."""
    engine.with_name("e.engine.json").unlink()
    engine.write_bytes(engine.read_bytes()[:-1000])
    done = run("check", "e.engine")
    done.assert_error(7, "could not be loaded here", "no GPU is visible")
    assert done.text.startswith("usable: unknown; not run")
    assert "note: no GPU is visible: the engine was not loaded" in done.text


def test_no_engine(run: Run) -> None:
    run("check", "missing.engine").assert_error(3, "does not exist", "missing.engine")
    run("check", "-").assert_error(3, "does not exist")
    done = run("check", "missing.engine", "--format", "json")
    assert (done.json["kind"], done.json["exit_code"]) == ("error", 3)
    run("check").assert_error(2, "ENGINE")


@pytest.mark.parametrize("name", ["three.onnx", "three.bin"])
def test_a_model_is_no_engine_and_no_pass(run: Run, three: Path, name: str) -> None:
    three.rename(three.with_name(name))
    run("check", name).assert_error(3, "no engine", name, "inspect")


@pytest.mark.skipif(is_installed("tensorrt"), reason="TensorRT is installed: nothing is lacking")
def test_a_backend_that_is_not_installed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trt.engine").write_bytes(b"ptrt" + bytes(500))
    done = run("check", "trt.engine")
    done.assert_error(6, "TensorRT", "not installed", "pip install")
    assert "built by TensorRT; here: none that answers" in done.text
    done = run("check", "trt.engine", "--format", "json")
    assert (done.code, done.json["usable"], done.json["error"]["exit_code"]) == (6, "no", 6)


@needs_rtx
@pytest.mark.skipif(is_installed("tensorrt"), reason="TensorRT is installed: nothing is lacking")
def test_a_missing_backend_is_not_all_that_is_wrong(run: Run, engine: Path) -> None:
    """Installing it would not help: the content is not the record's."""
    record(engine, backend="tensorrt")
    assert run("check", "e.engine").code == 6
    engine.write_bytes(b"other")
    run("check", "e.engine").assert_error(3, "content differs", "not installed")


@needs_rtx
def test_names_that_would_steer_a_terminal(run: Run, engine: Path) -> None:
    record(engine, model={"name": "a\x1b[2Jb", "bytes": 1, "sha256": "0"}, built="now\nusable: yes")
    done = run("check", "e.engine")
    assert done.code == CODE
    assert "\x1b" not in done.text + done.stderr
    assert "\\x1b[2J" in done.text
    assert not any(line.startswith("usable: yes") for line in done.text.splitlines()[1:])

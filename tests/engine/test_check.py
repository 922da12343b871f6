"""An engine is looked at before something tries to run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine import check
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.check import check_engine

from .conftest import SHAPES, model_of, needs_rtx, norm

pytestmark = needs_rtx


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """An engine and its record."""
    folder = tmp_path_factory.mktemp("engine")
    build_engine(model_of(norm()), folder / "e", shapes=SHAPES)
    return {name: (folder / name).read_bytes() for name in ("e", "e.json")}


@pytest.fixture
def engine(built: dict[str, bytes], tmp_path: Path) -> Path:
    """A copy of it."""
    for name, data in built.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path / "e"


def rewrite(engine: Path, **changes: object) -> None:
    """Change the record."""
    path = engine.with_name("e.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_good_engine(engine: Path) -> None:
    found = check_engine(engine)
    assert found.problems == ()
    assert found.backend == "tensorrt-rtx"
    assert found.built_with == found.installed
    assert found.record is not None
    assert found.usable == ("yes" if gpu_visible() else "unknown")
    if not gpu_visible():
        assert "no GPU is visible: the engine was not loaded" in found.notes
    found.require()


def ended(result: dict[str, object]) -> Ended:
    return Ended(result, 0, "")


def test_what_a_gpu_would_say(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = check_engine(engine).record
    assert record is not None
    result = {"version": record.version, "reasons": 0, "loaded": True, "texts": []}
    answers = [ended(result)]
    monkeypatch.setattr(check, "run_backend", lambda *_: answers[-1])
    monkeypatch.setattr(check, "gpus", lambda: ("NVIDIA H200, 9.0, 580",))
    found = check_engine(engine)
    assert (found.usable, found.problems) == ("yes", ())
    assert found.loaded_by == f"TensorRT-RTX {record.version} on NVIDIA H200"
    answers.append(ended(result | {"reasons": 2, "loaded": False}))
    assert check_engine(engine).problems == ("it was built for other GPUs",)
    answers.append(Ended(None, -11, "error: bad"))
    assert "SIGSEGV; error: bad" in check_engine(engine).problems[0]


def test_another_version_without_a_record(engine: Path) -> None:
    engine.with_name("e.json").unlink()
    data = bytearray(engine.read_bytes())
    data[24:27] = b"\x31\x32\x33"  # the version in the header, as seen on 1.7.1
    engine.write_bytes(data)
    found = check_engine(engine)
    assert found.usable == "no"
    assert any("another version" in problem for problem in found.problems)
    assert any("no record" in note for note in found.notes)
    with pytest.raises(InputError, match="cannot be used here"):
        found.require()


def test_another_version_by_the_record(engine: Path) -> None:
    rewrite(engine, version="1.6.0")
    found = check_engine(engine)
    assert found.usable == "no"
    assert (found.built_with, found.installed != "1.6.0") == ("1.6.0", True)
    assert any("1.6.0" in problem for problem in found.problems)


def test_another_platform(engine: Path) -> None:
    rewrite(engine, platform="Windows AMD64")
    assert any("Windows AMD64" in problem for problem in check_engine(engine).problems)


def test_content_that_is_not_the_records(engine: Path) -> None:
    data = bytearray(engine.read_bytes())
    data[-1] ^= 1
    engine.write_bytes(data)
    assert any("content differs" in problem for problem in check_engine(engine).problems)


@pytest.mark.parametrize("content", [b"", b"not an engine" * 100, b"vtrt" + b"\0" * 500])
def test_what_is_no_engine(engine: Path, content: bytes) -> None:
    engine.write_bytes(content)
    found = check_engine(engine)
    assert found.usable == "no"
    engine.with_name("e.json").unlink()
    alone = check_engine(engine)
    assert alone.usable == ("no" if content[:4] == b"vtrt" else "unknown")
    assert alone.problems or any("backend is not known" in note for note in alone.notes)


def test_a_record_that_is_damaged(engine: Path) -> None:
    for text in ("{", "[]", '{"schema_version": 99}', "\xff"):
        engine.with_name("e.json").write_text(text, encoding="latin-1")
        with pytest.raises(InputError):
            check_engine(engine)


def test_no_engine_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        check_engine(tmp_path / "none")
    with pytest.raises(InputError, match="no file"):
        check_engine(tmp_path)


def test_a_backend_that_is_not_installed(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "is_installed", lambda _: False)
    found = check_engine(engine)
    assert found.usable == "no"
    assert "pip install" in found.fixes[0]

"""Engines: their record says what the server needs. The engines here are stand-ins: bytes with a
record, for a real one cannot be loaded without a GPU and is only copied."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from rmsnorm_export.deploy.package import package_model
from rmsnorm_export.errors import BackendMissingError, Error, InputError, UsageError
from rmsnorm_export.records import to_json
from rmsnorm_export.tensorrt.engine.result import sidecar_path
from rmsnorm_export.tensorrt.plugin.libraries import LIBRARIES
from tests.deploy.models import N, needs_triton, read_config
from tests.engine.records import engine_record, profile

pytestmark = needs_triton
DATA = b"ftrt" + bytes(range(256))


def engine(folder: Path, **changes: object) -> Path:
    """``net.engine`` with its record."""
    path, sha256 = folder / "net.engine", hashlib.sha256(DATA).hexdigest()
    path.write_bytes(DATA)
    record = engine_record(**{"bytes": len(DATA), "sha256": sha256} | changes)
    sidecar_path(path).write_text(to_json(record))
    return path


def test_an_engine(tmp_path: Path) -> None:
    packaged = package_model(engine(tmp_path), tmp_path / "models")
    home, (model,) = tmp_path / "models/net", packaged.models
    assert (home / "1/model.plan").read_bytes() == DATA
    config = read_config(home)
    assert (config.backend, config.max_batch_size) == ("tensorrt", 8)
    assert config.default_model_filename == "model.plan"
    assert [list(one.dims) for one in (*config.input, *config.output)] == [[-1], [-1, N]]
    assert (model.load, model.answers[:2]) == ("", "no")
    assert model.files["1/model.plan"] == hashlib.sha256(DATA).hexdigest()


def test_several_profiles(tmp_path: Path) -> None:
    profiles = profile((1, 1), (1, 8), (4, 16)), profile((1, 16), (2, 64), (8, 512))
    package_model(engine(tmp_path, profiles=profiles), tmp_path / "models")
    config = read_config(tmp_path / "models/net")
    assert config.max_batch_size == 4, "every profile must take it"
    assert list(config.instance_group[0].profile) == ["0", "1"]
    wide = engine(tmp_path, profiles=(profile((4, 1), (4, 8), (8, 16)),))
    assert package_model(wide, tmp_path / "models", name="b").models[0].max_batch == 0
    with pytest.raises(UsageError, match="cannot join"):
        package_model(wide, tmp_path / "models", name="c", max_batch=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch": 9}, "more than the shapes allow"),
        ({"shapes": "ids=1x1"}, "own shapes"),
        ({"kind": "cpu"}, "GPU only"),
        ({"plugin": "none.so"}, "cannot be used"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(Error, match=words):
        package_model(engine(tmp_path), tmp_path / "models", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("problem", ["no record", "tensorrt-rtx", "longer", "changed"])
def test_what_does_not_belong_together(tmp_path: Path, problem: str) -> None:
    path = engine(tmp_path, backend="tensorrt-rtx" if problem[:2] == "te" else "tensorrt")
    if problem == "no record":
        sidecar_path(path).unlink()
    content = {"longer": DATA + b"x", "changed": b"ftrt" + bytes(256)}
    path.write_bytes(content.get(problem, DATA))
    with pytest.raises(InputError, match=r"cannot be (packaged|used)"):
        package_model(path, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_the_plugin_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("compiles a stand-in library: apt-get install g++")
    source, library = tmp_path / "plugin.cpp", tmp_path / LIBRARIES["tensorrt"]["dlopen"]
    source.write_text('extern "C" void* getPluginRegistry();\nvoid* r = getPluginRegistry();\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    path = engine(tmp_path, plugin=LIBRARIES["tensorrt"]["load_library"])
    packaged = package_model(path, tmp_path / "models", plugin=library)
    assert (tmp_path / "models/net/1" / library.name).read_bytes() == library.read_bytes()
    load = f"--backend-config=tensorrt,plugins=/models/net/1/{library.name}"
    assert packaged.models[0].load == load
    assert load in packaged.to_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BackendMissingError, match="plugin is not built"):
        package_model(path, tmp_path / "models", name="b")

"""Engines: their record says what the server needs. The engines here are stand-ins: bytes with a
record, for a real one cannot be loaded without a GPU and is only copied."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.deploy.package import package_model
from rmsnorm_export.errors import BackendMissingError, Error, InputError, UsageError
from rmsnorm_export.records import to_json
from rmsnorm_export.tensorrt.engine.result import (
    EngineNorm,
    EngineProfile,
    EngineRecord,
    InputRange,
    ModelIdentity,
    PluginState,
    sidecar_path,
)
from rmsnorm_export.tensorrt.plugin.result import LIBRARIES
from tests.deploy.models import N, decoder_model, needs_triton, read_config

pytestmark = needs_triton


def profile(*sizes: tuple[int, int]) -> EngineProfile:
    return EngineProfile((InputRange("ids", "int64", *sizes),))


def engine(folder: Path, **changes: object) -> Path:
    """``net.engine`` with its record and model."""
    onnx.save(decoder_model(), folder / "net.onnx")
    data, model = b"ftrt" + bytes(range(256)), (folder / "net.onnx").read_bytes()
    record = EngineRecord(
        engine="net.engine",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        model=ModelIdentity("net.onnx", len(model), hashlib.sha256(model).hexdigest()),
        backend="tensorrt",
        version="11.4.0",
        versions={},
        platform="Linux x86_64",
        gpus=("H200, 9.0, 580",),
        built="2026-01-01T00:00:00Z",
        seconds=1.0,
        profiles=(profile((1, 1), (4, 32), (8, 128)),),
        flags={},
        plugin=PluginState("auto", "", "", False, "no norm needs it"),
        norms=(EngineNorm("norm", "RMSNorm", "node", "plugin", 1),),
        layers=(),
        layers_from="inspector",
    )
    path = folder / "net.engine"
    path.write_bytes(data)
    sidecar_path(path).write_text(to_json(dataclasses.replace(record, **changes)))  # type: ignore[arg-type]
    return path


def test_an_engine(tmp_path: Path) -> None:
    packaged = package_model(engine(tmp_path), tmp_path / "models")
    home, (model,) = tmp_path / "models/net", packaged.models
    assert (home / "1/model.plan").read_bytes() == (tmp_path / "net.engine").read_bytes()
    config = read_config(home)
    assert (config.backend, config.max_batch_size) == ("tensorrt", 8)
    assert config.default_model_filename == "model.plan"
    assert [list(one.dims) for one in (*config.input, *config.output)] == [[-1], [-1, N]]
    assert (model.load, model.norms) == ("", {"RMSNorm in the engine: plugin": 1})
    assert model.answers.startswith("no")
    assert model.source_sha256 == model.files["1/model.plan"]


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
def test_options_that_an_engine_does_not_take(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    path = engine(tmp_path)
    with pytest.raises(Error, match=words):
        package_model(path, tmp_path / "models", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "models").exists()


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    path, models = engine(tmp_path, backend="tensorrt-rtx"), tmp_path / "models"
    with pytest.raises(InputError, match="cannot be packaged") as caught:
        package_model(path, models)
    assert "tensorrt-rtx" in caught.value.found
    engine(tmp_path)
    sidecar_path(path).unlink()
    with pytest.raises(InputError, match="cannot be packaged"):
        package_model(path, models)
    for other in (b"ftrt, another", b"ftrt" + bytes(256)):
        engine(tmp_path)
        path.write_bytes(other)
        with pytest.raises(InputError, match="cannot be packaged"):
            package_model(path, models)
    engine(tmp_path)
    (tmp_path / "net.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(InputError, match="outputs of the engine"):
        package_model(path, models)
    package_model(path, tmp_path / "found", onnx=tmp_path / "moved.onnx")
    changed = onnx.load(tmp_path / "moved.onnx")
    changed.doc_string = "changed"
    onnx.save(changed, tmp_path / "net.onnx")
    with pytest.raises(InputError, match="outputs of the engine"):
        package_model(path, models)
    assert not models.exists()


def test_the_plugin_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("compiles a stand-in library: apt-get install g++")
    source, library = tmp_path / "plugin.cpp", tmp_path / LIBRARIES["tensorrt"]["dlopen"]
    source.write_text('extern "C" void* getPluginRegistry();\nvoid* r = getPluginRegistry();\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    used = PluginState("auto", LIBRARIES["tensorrt"]["load_library"], "", False, "")
    path = engine(tmp_path, plugin=used)
    packaged = package_model(path, tmp_path / "models", plugin=library)
    assert (tmp_path / "models/net/1" / library.name).read_bytes() == library.read_bytes()
    load = f"--backend-config=tensorrt,plugins=/models/net/1/{library.name}"
    assert packaged.models[0].load == load
    assert load in (tmp_path / "models/net/README.md").read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BackendMissingError, match="plugin is not built"):
        package_model(path, tmp_path / "models", name="b")

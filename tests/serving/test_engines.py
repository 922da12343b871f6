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

from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.serving.protos import parse_config
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
from tests.serving.models import N, decoder_model, needs_triton, tree

pytestmark = needs_triton


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _engine(folder: Path, **changes: object) -> Path:
    """``net.engine`` with its record and model."""
    onnx.save(decoder_model(), folder / "net.onnx")
    data, model = b"ftrt" + bytes(range(256)), (folder / "net.onnx").read_bytes()
    ranges = InputRange("ids", "int64", (1, 1), (4, 32), (8, 128))
    record = EngineRecord(
        engine="net.engine",
        bytes=len(data),
        sha256=_sha(data),
        model=ModelIdentity("net.onnx", len(model), _sha(model)),
        backend="tensorrt",
        version="11.4.0",
        versions={},
        platform="Linux x86_64",
        gpus=("H200, 9.0, 580",),
        built="2026-01-01T00:00:00Z",
        seconds=1.0,
        profiles=(EngineProfile((ranges,)),),
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
    packaged = package_model(_engine(tmp_path), tmp_path / "models", preferred_batch_sizes=[4])
    assert (packaged.path / "1/model.plan").read_bytes() == (tmp_path / "net.engine").read_bytes()
    config = parse_config((packaged.path / "config.pbtxt").read_text(), "config.pbtxt")
    assert (config.backend, config.max_batch_size) == ("tensorrt", 8)
    assert config.default_model_filename == "model.plan"
    assert [list(i.dims) for i in config.input] == [[-1]]
    assert [list(o.dims) for o in config.output] == [[-1, N]]
    warm = [(w.batch_size, list(w.inputs["ids"].dims)) for w in config.model_warmup]
    assert warm == [(4, [32]), (8, [128])]
    assert packaged.load == ""
    assert {c.name: c.outcome for c in packaged.checks}["answers in ONNX Runtime"] == "not run"
    assert "| RMSNorm | plugin |" in (packaged.path / "README.md").read_text()
    beside = (packaged.path / "1/engine.json").read_bytes()
    assert beside == (tmp_path / "net.engine.json").read_bytes()
    listed = {file.path: file.sha256 for file in packaged.current.files}
    assert listed["1/engine.json"] == _sha(beside)
    built = from_json(beside.decode(), EngineRecord)
    assert built.model.sha256 == _sha((tmp_path / "net.onnx").read_bytes())
    assert built.sha256 == packaged.current.source_sha256 == listed["1/model.plan"]


def test_the_profile_bounds_the_batch(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    with pytest.raises(UsageError, match="more than the shapes allow"):
        package_model(engine, tmp_path / "models", max_batch=9)
    with pytest.raises(UsageError, match="own shapes"):
        package_model(engine, tmp_path / "models", shapes="ids=1x1")
    with pytest.raises(UsageError, match="GPU only"):
        package_model(engine, tmp_path / "models", kind="cpu")
    with pytest.raises(UsageError, match="does not run this file"):
        package_model(engine, tmp_path / "models", backend="onnxruntime")
    assert not (tmp_path / "models").exists()


def test_several_profiles(tmp_path: Path) -> None:
    short = InputRange("ids", "int64", (1, 1), (1, 8), (4, 16))
    long = InputRange("ids", "int64", (1, 16), (2, 64), (8, 512))
    profiles = (EngineProfile((short,)), EngineProfile((long,)))
    packaged = package_model(_engine(tmp_path, profiles=profiles), tmp_path / "models")
    config = parse_config((packaged.path / "config.pbtxt").read_text(), "config.pbtxt")
    assert config.max_batch_size == 4, "every profile must take it"
    assert list(config.instance_group[0].profile) == ["0", "1"]
    warm = [(w.batch_size, list(w.inputs["ids"].dims)) for w in config.model_warmup]
    assert warm == [(2, [64]), (4, [512])]


def test_a_profile_that_a_single_request_does_not_fit(tmp_path: Path) -> None:
    wide = EngineProfile((InputRange("ids", "int64", (4, 1), (4, 8), (8, 16)),))
    engine = _engine(tmp_path, profiles=(wide,))
    packaged = package_model(engine, tmp_path / "models")
    assert packaged.record.max_batch == 0
    assert any("smallest batch is 4" in note for note in packaged.current.notes)
    with pytest.raises(UsageError, match="cannot join"):
        package_model(engine, tmp_path / "models", name="b", max_batch=8)


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    engine, models = _engine(tmp_path, backend="tensorrt-rtx"), tmp_path / "models"
    with pytest.raises(InputError, match="TensorRT-RTX"):
        package_model(engine, models)
    _engine(tmp_path)
    sidecar_path(engine).unlink()
    with pytest.raises(InputError, match="no record"):
        package_model(engine, models)
    _engine(tmp_path)
    for other in (b"ftrt, another", b"ftrt" + bytes(256)):
        engine.write_bytes(other)
        with pytest.raises(InputError, match="not the one"):
            package_model(engine, models)
    _engine(tmp_path)
    (tmp_path / "net.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(UsageError, match="outputs of the engine") as error:
        package_model(engine, models)
    assert "--onnx" in error.value.fix
    package_model(engine, tmp_path / "found", onnx=tmp_path / "moved.onnx")
    changed = onnx.load(tmp_path / "moved.onnx")
    changed.doc_string = "changed"
    onnx.save(changed, tmp_path / "net.onnx")
    with pytest.raises(InputError, match="another model"):
        package_model(engine, models)
    assert not models.exists()


def _library(folder: Path) -> Path:
    """A library that looks like the plugin for programs that dlopen it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("compiles a stand-in library: apt-get install g++")
    folder.mkdir()
    source = folder / "plugin.cpp"
    source.write_text('extern "C" void* getPluginRegistry();\nvoid* r = getPluginRegistry();\n')
    path = folder / LIBRARIES["tensorrt"]["dlopen"]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_an_engine_that_uses_the_plugin(tmp_path: Path) -> None:
    library = _library(tmp_path / "a folder")
    used = PluginState(
        "auto", LIBRARIES["tensorrt"]["load_library"], _sha(library.read_bytes()), False, ""
    )
    packaged = package_model(
        _engine(tmp_path, plugin=used), tmp_path / "models", name="net", plugin=library
    )
    copied = packaged.path / "1" / library.name
    assert copied.read_bytes() == library.read_bytes()
    assert packaged.load == (
        f"tritonserver --model-repository={tmp_path}/models"
        f" --backend-config=tensorrt,plugins={copied}"
    )
    served = f"plugins=/models/net/1/{library.name}"
    assert served in (packaged.path / "README.md").read_text()
    assert str(tmp_path) not in (packaged.path / "README.md").read_text()
    assert not any("another build" in note for note in packaged.current.notes)
    other = package_model(
        _engine(tmp_path, plugin=dataclasses.replace(used, sha256="0" * 64)),
        tmp_path / "models",
        name="other",
        plugin=library,
    )
    assert any("another build" in note for note in other.current.notes)


def test_a_plugin_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    used = PluginState("auto", LIBRARIES["tensorrt"]["load_library"], "", False, "")
    engine = _engine(tmp_path, plugin=used)
    with pytest.raises(BackendMissingError, match="plugin is not built"):
        package_model(engine, tmp_path / "models")
    with pytest.raises(InputError, match="library cannot be used"):
        package_model(engine, tmp_path / "models", plugin=tmp_path / "none.so")
    engine = _engine(tmp_path)
    with pytest.raises(UsageError, match="needs no plugin"):
        package_model(engine, tmp_path / "models", plugin=tmp_path / "none.so")
    assert "models" not in tree(tmp_path)

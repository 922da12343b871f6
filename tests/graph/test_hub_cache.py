"""Models in Hugging Face's cache: links into ``blobs``, laid out by its own code."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.deploy.result import files_of
from rmsnorm_export.graph.load import load_model
from tests.graph.folders import snapshot as contents
from tests.recognize import text_models as text

hub = pytest.importorskip("huggingface_hub.file_download")

REVISION = "0" * 40
ENDS = {"inputs": "float[B,64] x", "constants": text.CONSTANTS}


def put(home: Path, name: str, content: bytes) -> Path:
    """Store a file as a download does, in a repository of the cache."""
    blob = home / "blobs" / hashlib.sha256(content).hexdigest()
    pointer = Path(hub._get_pointer_path(str(home), REVISION, name))
    for path in (blob, pointer):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    hub._create_symlink(str(blob), str(pointer), new_blob=True)
    assert pointer.is_symlink()
    return pointer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "hub" / hub.repo_folder_name(repo_id="org/net", repo_type="model")


@pytest.fixture(params=["onnx/", ""])
def model(home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A model with external data, as most of the hub's: in a folder, or right in the snapshot."""
    body = text.norm("x", "scaled", weight="gain") + "y = MatMul(scaled, weight)"
    net, plain = text.model(body, outputs="float[B,96] y", **ENDS), tmp_path / "plain"
    plain.mkdir()
    random = np.random.default_rng(0)
    for name, shape in (("gain", (64,)), ("weight", (64, 96))):
        array = random.normal(0, 1, shape).astype(np.float32)
        net.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(
        net, plain / "model.onnx", save_as_external_data=True, location="model.onnx_data",
        size_threshold=128,
    )  # fmt: skip
    for name in ("model.onnx_data", "model.onnx"):
        pointer = put(home, request.param + name, (plain / name).read_bytes())
    put(home, "config.json", b"{}")
    shutil.rmtree(plain)
    return pointer


@pytest.mark.parametrize(
    "model", ["onnx/", pytest.param("", marks=pytest.mark.thorough)], indirect=True
)
def test_every_command_reads_it_and_changes_nothing(
    model: Path, home: Path, tmp_path: Path
) -> None:
    before, out = contents(home), tmp_path / "out"
    out.mkdir()
    assert len(rx.inspect(model, health=True).fused) == 1
    result = rx.optimize(model, prove=True)
    for weights in ("auto", "copy", "embed"):
        result.save(out / f"{weights}.onnx", weights=weights)
        assert rx.verify(model, out / f"{weights}.onnx").passed
    with pytest.raises(rx.UsageError, match="blobs"):
        result.save(out / "reference.onnx", weights="reference")
    rx.optimize(model, target="ort", quantize="int8").save(out / "int8.onnx")
    rx.optimize(model, target="ort", fusions="cpu").save(out / "fused.onnx")
    assert rx.bench(model, targets=["ort"], seconds=0.1).timings
    rx.package_model(model, tmp_path / "served", name="net", kind="cpu")
    assert {path.name for path in files_of(model)} == {"model.onnx", "model.onnx_data"}
    assert contents(home) == before
    shutil.rmtree(home)  # what was written needs none of it
    written = [*out.glob("*.onnx"), tmp_path / "served" / "net" / "1" / "model.onnx"]
    for path in written:
        assert rx.verify(path, out / "embed.onnx", rtol=0.05).passed
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_outputs_stay_out_of_blobs(model: Path, home: Path) -> None:
    before, result = contents(home / "blobs"), rx.optimize(model)
    result.save(model.with_name("new.onnx"))
    result.save(model, force=True)  # the link goes, and not what it leads to
    with pytest.raises(rx.UsageError, match="reference"):
        result.save(model.with_name("newer.onnx"), weights="reference")
    link = model.with_name("link")
    link.symlink_to(home / "blobs")
    for folder in (home / "blobs", link):
        with pytest.raises(rx.UsageError, match="by their digests"):
            result.save(folder / "new.onnx")
    assert contents(home / "blobs") == before
    for name in ("model.onnx", "new.onnx"):
        assert not model.with_name(name).is_symlink()
        assert rx.verify(result.model, model.with_name(name)).passed


def test_a_folder_of_graphs_is_read(model: Path, home: Path, tmp_path: Path) -> None:
    """Its weights cannot be referenced from where the graphs are: ``auto`` copies them."""
    put(home, str(model.parent.relative_to(home / "snapshots" / REVISION) / "config.json"), b"{}")
    before, blobs = contents(home), contents(home / "blobs")
    result = rx.optimize(model.parent)
    for weights in ("auto", "embed"):
        result.save(tmp_path / weights, weights=weights)
        assert rx.verify(model.parent, tmp_path / weights).passed
    assert contents(home) == before
    with pytest.raises(rx.UsageError, match="which has links to them"):
        result.save(model.parent, weights="reference", force=True)
    result.save(model.parent, force=True)
    assert contents(home / "blobs") == blobs
    assert rx.verify(model.parent, tmp_path / "embed").passed


def _elsewhere(model: Path, home: Path) -> None:
    (data := _data(model)).unlink()
    data.symlink_to(home.parents[1] / "secret")


def _other_repository(model: Path, home: Path) -> None:
    other = put(home.with_name("models--org--other"), "model.onnx_data", b"1" * 30_000)
    (data := _data(model)).unlink()
    data.symlink_to(os.path.realpath(other))


def _blob_is_a_link(model: Path, home: Path) -> None:
    blob = Path(os.path.realpath(_data(model)))
    blob.unlink()
    blob.symlink_to(home.parents[1] / "secret")


def _blobs_are_a_link(_: Path, home: Path) -> None:
    (home / "blobs").rename(home.parents[1] / "blobs")
    (home / "blobs").symlink_to(home.parents[1] / "blobs")


def _folder_in_blobs(model: Path, home: Path) -> None:
    blob = Path(os.path.realpath(_data(model)))
    (home / "blobs" / "deep").mkdir()
    blob.rename(home / "blobs" / "deep" / "data")
    (data := _data(model)).unlink()
    data.symlink_to(home / "blobs" / "deep" / "data")


def _no_cache(_: Path, home: Path) -> None:
    home.rename(home.with_name("net"))


def _no_snapshot(_: Path, home: Path) -> None:
    (home / "snapshots").rename(home / "models")


def _data(model: Path) -> Path:
    return model.with_name("model.onnx_data")


@pytest.mark.parametrize(
    "change",
    [
        _elsewhere, _other_repository, _blob_is_a_link, _blobs_are_a_link, _folder_in_blobs,
        _no_cache, _no_snapshot,
    ],
)  # fmt: skip
def test_links_that_lead_elsewhere_are_refused(
    model: Path, home: Path, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "secret").write_bytes(b"0" * 30_000)
    change(model, home)
    (moved,) = (tmp_path / "hub").rglob("model.onnx")
    with pytest.raises(rx.InputError, match="leaves the folder of the model by a symbolic link"):
        load_model(moved)


COMMANDS: dict[str, Callable[[Path, Path], object]] = {
    "optimize": lambda folder, _: rx.optimize(folder),
    "inspect": lambda folder, _: rx.inspect(folder),
    "package": lambda folder, out: rx.package_model(folder, out, kind="cpu"),
    "verify": lambda folder, _: rx.verify(folder, folder),
}


@pytest.mark.parametrize("name", ["model.onnx", "config.json", "genai_config.json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_one_rule_for_all_files_of_a_folder(tmp_path: Path, name: str, command: str) -> None:
    """A graph that is a link out of the folder is none of its, as its data and its configs."""
    folder, elsewhere = tmp_path / "net", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    net = text.model(text.norm("x", "y", weight=None), outputs="float[B,64] y", **ENDS)
    onnx.save(net, folder / "model.onnx")
    for config in ("config.json", "genai_config.json"):
        (folder / config).write_text('{"model": {"decoder": {}}}')
    (folder / name).rename(elsewhere / name)
    (folder / name).symlink_to(elsewhere / name)
    with pytest.raises(rx.InputError, match="lies outside of it"):
        COMMANDS[command](folder, tmp_path / "out")

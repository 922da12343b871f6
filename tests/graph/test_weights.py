"""Where external data goes: in place, copied or embedded; never over another file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from graph.folders import snapshot
from hostile_models import GAIN, SHAPE, constants, external_gain, external_model, norm_model, write

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph import save
from rmsnorm_export.graph.load import LoadedModel, load_model
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.system import files as system_files


@pytest.fixture
def source(tmp_path: Path) -> LoadedModel:
    """A model in ``source`` with its gain in ``w.bin``; there is an empty folder ``target``."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    return load_model(external_model(tmp_path / "source", data=GAIN))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "target" / "out.onnx"


def entries(path: Path) -> dict[str, str]:
    """The external entries of the gain, {} when it is stored in the model."""
    (gain,) = (
        t for t in onnx.load(path, load_external_data=False).graph.initializer if t.name == "w"
    )
    return {entry.key: entry.value for entry in gain.external_data}


def run(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    return session.run(None, {"x": x})[0]


IN_PLACE = {"location": "w.bin", "offset": "0", "length": "32"}


@pytest.mark.parametrize("weights", ["auto", "reference", "copy"])
def test_same_folder_references_in_place(weights: str, source: LoadedModel) -> None:
    assert source.path is not None
    folder = source.path.parent
    before = snapshot(folder)
    result = save_model(source.model, folder / "out.onnx", source=source, weights=weights)  # type: ignore[arg-type]
    assert result.weights == "reference"
    assert result.data_files == ()
    assert entries(result.path) == IN_PLACE
    after = snapshot(folder)
    after.pop("out.onnx")
    assert after == before


def test_same_folder_under_another_name(source: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("source")
    result = save_model(source.model, tmp_path / "alias" / "out.onnx")
    assert result.weights == "reference"
    assert (tmp_path / "source" / "out.onnx").exists()


def test_offset_and_length_that_are_absent_stay_absent(tmp_path: Path) -> None:
    loaded = load_model(external_model(tmp_path, "./w.bin", None, None, data=GAIN))
    result = save_model(loaded.model, tmp_path / "out.onnx")
    assert entries(result.path) == {"location": "./w.bin"}


@pytest.mark.parametrize("weights", ["auto", "copy"])
def test_another_folder_gets_a_copy(weights: str, source: LoadedModel, out: Path) -> None:
    assert source.path is not None
    before = snapshot(source.path.parent)
    result = save_model(source.model, out, source=source, weights=weights)  # type: ignore[arg-type]
    assert result.weights == "copy"
    assert result.data_files == (out.parent / "w.bin",)
    assert "32 bytes" in result.notes[0]
    assert sorted(os.listdir(out.parent)) == ["out.onnx", "w.bin"]
    assert entries(out) == IN_PLACE
    np.testing.assert_array_equal(run(out), run(source.path))
    assert snapshot(source.path.parent) == before


def test_auto_keeps_the_source_loadable_by_everyone(source: LoadedModel, out: Path) -> None:
    """onnx and onnx_ir refuse data with two hard links: the reason why auto makes none."""
    assert source.path is not None
    save_model(source.model, out, source=source)
    for path in (source.path, out):
        onnx.load(path)
        onnx.checker.check_model(path)
        value = ir.load(path).graph.initializers["w"].const_value
        assert value is not None
        assert value.numpy().tobytes() == GAIN


def test_reference_from_another_folder_is_refused(source: LoadedModel, out: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)w\.bin.*--weights copy"):
        save_model(source.model, out, weights="reference")
    assert os.listdir(out.parent) == []


def test_embed(source: LoadedModel, out: Path) -> None:
    assert source.path is not None
    result = save_model(source.model, out, weights="embed")
    assert result.weights == "embed"
    assert os.listdir(out.parent) == ["out.onnx"]
    assert entries(out) == {}
    np.testing.assert_array_equal(run(out), run(source.path))
    # The model in memory still refers to the file, so it can be saved in another way.
    assert save_model(source.model, source.path.parent / "again.onnx").weights == "reference"


def test_embed_refuses_more_than_protobuf_holds(
    source: LoadedModel, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "MAX_EMBEDDED_BYTES", 31)
    with pytest.raises(InputError, match=r"2 GiB.*\n.*--weights copy"):
        save_model(source.model, out, weights="embed")
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize("weights", ["link", "hardlink"])
def test_unknown_policy(weights: str, source: LoadedModel, out: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)link.*reference"):
        save_model(source.model, out, weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("force", [False, True])
def test_other_data_of_the_same_name_is_never_touched(
    force: bool, source: LoadedModel, out: Path
) -> None:
    (out.parent / "w.bin").write_bytes(b"weights of another model")
    (out.parent / "out.w.bin").write_bytes(b"and of yet another")
    before = snapshot(out.parent)
    result = save_model(source.model, out, weights="copy", force=force)
    assert result.data_files == (out.parent / "out-2.w.bin",)
    assert entries(out) == {**IN_PLACE, "location": "out-2.w.bin"}
    assert "'out-2.w.bin'" in " ".join(result.notes)
    assert source.path is not None
    np.testing.assert_array_equal(run(out), run(source.path))
    after = snapshot(out.parent)
    del after["out.onnx"], after["out-2.w.bin"]
    assert after == before


def test_equal_data_is_used_again(source: LoadedModel, out: Path) -> None:
    save_model(source.model, out, weights="copy")
    before = (out.parent / "w.bin").stat()
    result = save_model(source.model, out, weights="copy", force=True)
    assert result.data_files == ()
    assert "already" in result.notes[0]
    assert (out.parent / "w.bin").stat().st_ino == before.st_ino
    assert sorted(os.listdir(out.parent)) == ["out.onnx", "w.bin"]


@pytest.mark.parametrize("force", [False, True])
def test_the_output_never_replaces_the_weights(force: bool, source: LoadedModel) -> None:
    assert source.path is not None
    before = snapshot(source.path.parent)
    with pytest.raises(UsageError):
        save_model(source.model, source.path.parent / "w.bin", source=source, force=force)
    assert snapshot(source.path.parent) == before


def test_output_named_like_the_weights_in_another_folder(source: LoadedModel, out: Path) -> None:
    target = out.parent / "w.bin"
    result = save_model(source.model, target)
    assert result.data_files == (out.parent / "w.w.bin",)
    assert source.path is not None
    np.testing.assert_array_equal(run(target), run(source.path))


def test_subfolders_are_kept_and_taken_back(source: LoadedModel, tmp_path: Path, out: Path) -> None:
    deep = tmp_path / "source" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "w.bin").write_bytes(GAIN)
    loaded = load_model(external_model(tmp_path / "source", "a/b/w.bin"))
    result = save_model(loaded.model, out)
    assert result.data_files == (out.parent / "a" / "b" / "w.bin",)
    assert entries(out)["location"] == "a/b/w.bin"
    assert source.model is not loaded.model


def test_a_subfolder_that_is_a_symbolic_link_is_not_written_through(
    source: LoadedModel, tmp_path: Path, out: Path
) -> None:
    (tmp_path / "source" / "a").mkdir()
    (tmp_path / "source" / "a" / "w.bin").write_bytes(GAIN)
    (tmp_path / "elsewhere").mkdir()
    (out.parent / "a").symlink_to(tmp_path / "elsewhere")
    loaded = load_model(external_model(tmp_path / "source", "a/w.bin"))
    result = save_model(loaded.model, out)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert result.data_files == (out.parent / "out.w.bin",)
    assert load_model(out).external == ("out.w.bin",)
    assert source.external == ("w.bin",)


def test_several_files_and_shared_ranges(tmp_path: Path) -> None:
    """Two files, three tensors, two of which overlap: each file is copied once."""
    folder, target = tmp_path / "source", tmp_path / "target"
    folder.mkdir()
    target.mkdir()
    (folder / "one.bin").write_bytes(GAIN * 2)
    (folder / "two.bin").write_bytes(GAIN)
    tensors = [external_gain("one.bin", 0, 32), external_gain("one.bin", 16, 32)]
    tensors.append(external_gain("two.bin", 0, 32))
    for name, tensor in zip(("w", "v", "u"), tensors, strict=True):
        tensor.name = name
    loaded = load_model(write(folder, norm_model(initializers=[*constants(gain=False), *tensors])))
    assert loaded.external == ("one.bin", "two.bin")
    assert loaded.external_size == 96
    result = save_model(loaded.model, target / "out.onnx")
    assert result.data_files == (target / "one.bin", target / "two.bin")
    saved = load_model(result.path)
    for name, start in (("w", 0), ("v", 16), ("u", 0)):
        value = saved.model.graph.initializers[name].const_value
        assert value is not None
        assert value.numpy().tobytes() == (GAIN * 2)[start : start + 32]


def test_tensor_in_an_attribute(tmp_path: Path) -> None:
    folder, target = tmp_path / "source", tmp_path / "target"
    folder.mkdir()
    target.mkdir()
    (folder / "w.bin").write_bytes(GAIN)
    gain = external_gain("w.bin", 0, 32)
    model = norm_model(initializers=constants(gain=False))
    constant = onnx.helper.make_node("Constant", [], ["w"], name="gain", value=gain)
    model.graph.node.insert(0, constant)
    (target / "w.bin").write_bytes(b"another")
    loaded = load_model(write(folder, model))
    save_model(loaded.model, target / "copied.onnx")
    save_model(loaded.model, target / "embedded.onnx", weights="embed")
    copied = onnx.load(target / "copied.onnx", load_external_data=False)
    assert copied.graph.node[0].attribute[0].t.external_data[0].value == "copied.w.bin"
    embedded = onnx.load(target / "embedded.onnx", load_external_data=False)
    assert embedded.graph.node[0].attribute[0].t.raw_data == GAIN


def test_model_from_memory_beside_its_weights(source: LoadedModel, out: Path) -> None:
    assert source.path is not None
    loaded = load_model(source.path.read_bytes())
    result = save_model(loaded.model, source.path.parent / "out.onnx", source=loaded)
    assert result.weights == "reference"
    with pytest.raises(InputError, match=r"'w'.*w\.bin.*does not exist"):
        save_model(loaded.model, out, source=loaded)
    assert os.listdir(out.parent) == []


def test_weights_that_vanished_since_loading(source: LoadedModel) -> None:
    assert source.path is not None
    (source.path.parent / "w.bin").unlink()
    with pytest.raises(InputError, match="does not exist"):
        save_model(source.model, source.path.parent / "out.onnx")


def test_no_room_for_a_copy(
    source: LoadedModel, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(InputError, match=r"No space left.*\n.*free some space"):
        save_model(source.model, out)
    assert os.listdir(out.parent) == []


def test_a_copy_that_cannot_fit_is_refused_before_it_starts(
    source: LoadedModel, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_files, "_free_bytes", lambda _: 31)
    with pytest.raises(InputError, match="No space left"):
        save_model(source.model, out)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize("kernel", [True, False])
def test_sparse_copy(kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB with three written islands: the same bytes, and still a sparse file."""
    if not kernel:
        monkeypatch.delattr(os, "copy_file_range")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for position in (0, 5_000_001, 60_000_000):
            file.seek(position)
            file.write(b"island" * 1000)
        file.truncate(1 << 26)
    descriptor = os.open(tmp_path / "copy", os.O_CREAT | os.O_RDWR)
    try:
        system_files.copy_contents(str(path), descriptor)
        assert os.fstat(descriptor).st_blocks * 512 < 1 << 20
    finally:
        os.close(descriptor)
    assert system_files.same_contents(str(path), str(tmp_path / "copy"))
    with (tmp_path / "copy").open("r+b") as file:
        file.seek(60_000_100)
        file.write(b"x")
    assert not system_files.same_contents(str(path), str(tmp_path / "copy"))

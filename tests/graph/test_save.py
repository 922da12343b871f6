"""Saving: atomic, never over anything by accident; and where external data goes."""

from __future__ import annotations

import functools
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hostile.frames import GAIN, constants, external_gain, external_model, norm_model, write

import rmsnorm_export as rx
from graph.folders import snapshot
from rmsnorm_export.decoder.bundle import check_folder
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph import external, load
from rmsnorm_export.graph.load import LoadedModel, load_model
from rmsnorm_export.graph.save import check_output, save_model, to_bytes
from rmsnorm_export.system import files

OLD = b"the old file"
IN_PLACE = {"location": "w.bin", "offset": "0", "length": "32"}
COPIED = IN_PLACE | {"location": "out.onnx.data"}


@pytest.fixture
def source(tmp_path: Path) -> LoadedModel:
    """A model in ``source`` with its gain in ``w.bin``; there is an empty folder ``target``."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    return load_model(external_model(tmp_path / "source", data=GAIN))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "target" / "out.onnx"


def entries(model: onnx.ModelProto) -> dict[str, str]:
    """The external entries of the gain, {} when it is stored in the model."""
    (gain,) = (tensor for tensor in model.graph.initializer if tensor.name == "w")
    return {entry.key: entry.value for entry in gain.external_data}


def gain_of(path: Path) -> bytes:
    value = load_model(path).model.graph.initializers["w"].const_value
    assert value is not None
    return value.numpy().tobytes()


def test_the_mode_is_that_of_a_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save_model(load_model(norm_model()).model, tmp_path / "new.onnx")
    finally:
        os.umask(old)
    assert (tmp_path / "new.onnx").stat().st_mode & 0o777 == 0o640
    (tmp_path / "old.onnx").write_bytes(OLD)
    (tmp_path / "old.onnx").chmod(0o604)
    save_model(load_model(norm_model()).model, tmp_path / "old.onnx", force=True)
    assert (tmp_path / "old.onnx").stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("appears", ["before", "meanwhile"])
def test_an_existing_file_needs_force(
    appears: str, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "out.onnx", os.fsync
    if not exchange:
        monkeypatch.setattr(files, "renameat2", lambda *_: False)
    if appears == "before":
        out.write_bytes(OLD)
    monkeypatch.setattr(os, "fsync", lambda fd: (real(fd), out.write_bytes(OLD)))
    with pytest.raises(UsageError, match=r"exists already.*\n.*out\.onnx.*\n.*--force"):
        save_model(load_model(norm_model()).model, out)
    assert out.read_bytes() == OLD
    monkeypatch.setattr(os, "fsync", real)
    save_model(load_model(norm_model()).model, out, force=True)
    assert load_model(out).path == out
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_output_is_the_input(source: LoadedModel) -> None:
    path = source.path
    assert path is not None
    before = snapshot(path.parent)
    for force in (False, True):
        with pytest.raises(UsageError):
            save_model(source.model, path.with_name("w.bin"), force=force)
    assert snapshot(path.parent) == before
    save_model(source.model, path, force=True)
    assert gain_of(path) == GAIN


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(OLD)
    (tmp_path / "out.onnx").symlink_to("precious")
    save_model(load_model(norm_model()).model, tmp_path / "out.onnx", force=True)
    assert not (tmp_path / "out.onnx").is_symlink()
    assert (tmp_path / "precious").read_bytes() == OLD


@pytest.mark.parametrize("path", [3, None, "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    result, folder = rx.optimize(norm_model()), functools.partial(check_folder, force=True)
    for save in (result.save, check_output, folder):
        with pytest.raises(UsageError, match="no name of a file or folder"):
            save(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("folder", "a folder"), ("pipe", "device, pipe or socket"), ("x" * 300, "name too long"),
     ("absent/out.onnx", "does not exist"), ("new/", "is a folder"),
     ("/dev/null", "device, pipe"), ("/proc/self/out.onnx", "cannot be written"), ("", "folder")],
)  # fmt: skip
def test_places_that_cannot_be_written(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = snapshot(tmp_path)
    target = f"{tmp_path}/{name}" if name[:1] != "/" else name
    model = load_model(norm_model()).model
    for check in (check_output, lambda path, **how: save_model(model, path, **how)):
        if not name.startswith(("x", "/proc")) or check is not check_output:
            with pytest.raises(Error, match=f"(?i){words}"):
                check(target, force=True)
    assert snapshot(tmp_path) == before


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a forked process; its wait status (0: it returned)."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_disk_full(tmp_path: Path) -> None:
    """A file-size limit stops the write in the middle, as a full disk does."""
    model, out = load_model(norm_model()).model, tmp_path / "out.onnx"
    tensor = ir.tensor(np.zeros(1 << 18, np.float32), name="ballast")
    model.graph.register_initializer(ir.Value(name="ballast", const_value=tensor))
    out.write_bytes(OLD)

    def attempt() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            save_model(model, out, force=True)
        except InputError as error:
            (tmp_path / "caught").write_text(str(error))

    assert in_child(attempt) == 0
    assert "File too large" in (tmp_path / "caught").read_text()
    assert out.read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["caught", "out.onnx"]


def cut_short(name: str, count: int, after: int, number: int) -> Callable[..., object]:
    """``os.<name>`` whose ``count``-th call sends a signal, before it does its work or after it."""
    real, calls = getattr(os, name), []

    def replacement(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        result = real(*arguments, **options) if after or len(calls) != count else None
        if len(calls) == count:
            signal.raise_signal(number)
        return result

    return replacement


@pytest.mark.parametrize(
    "at",
    [("fsync", 1, 0), ("chmod", 1, 0), ("replace", 1, 0), ("replace", 2, 0), ("replace", 2, 1)],
)
def test_an_interrupt_leaves_the_old_file_or_a_whole_model(
    at: tuple[str, int, int], source: LoadedModel, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write_bytes(OLD)
    before = snapshot(out.parents[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    monkeypatch.setattr(os, at[0], cut_short(*at, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        save_model(source.model, out, weights="copy", force=True)
    assert gain_of(out) == GAIN if at[2] else snapshot(out.parents[1]) == before


KILLS = [("open", 1), ("open", 2), ("fsync", 1), ("fsync", 2), ("fsync", 3), ("fsync", 4)]
KILLS += [*((name, count) for name in ("chmod", "replace") for count in (1, 2))]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("name", "count"), KILLS)
def test_a_kill_leaves_the_old_file_or_the_new_one(
    name: str, count: int, after: bool, source: LoadedModel, out: Path, tmp_path: Path
) -> None:
    """Weights are copied, then the model replaces an old one; killed at every step of it."""
    before = snapshot(tmp_path / "source")
    out.write_bytes(norm_model().SerializeToString())

    def attempt() -> None:
        setattr(os, name, cut_short(name, count, after, signal.SIGKILL))
        save_model(source.model, out, weights="copy", force=True)

    assert in_child(attempt) == signal.SIGKILL
    assert snapshot(tmp_path / "source") == before
    assert gain_of(out) == GAIN
    for path in out.parent.iterdir():
        if path.name not in ("out.onnx", "out.onnx.data"):
            assert path.name.startswith(".")
            assert files.TEMP_SUFFIX in path.name
    # What is still there does not stand in the way.
    save_model(source.model, out, weights="copy", force=True)
    assert load_model(out).external


@pytest.mark.parametrize(
    ("weights", "where", "used"),
    [("auto", "source", "reference"), ("reference", "source", "reference"),
     ("copy", "source", "reference"), ("auto", "alias", "reference"), ("auto", "target", "copy"),
     ("copy", "target", "copy"), ("embed", "target", "embed"), ("embed", "source", "embed")],
)  # fmt: skip
def test_policies(weights: str, where: str, used: str, source: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("source")
    before = snapshot(tmp_path / "source")
    path = tmp_path / where / "out.onnx"
    result = save_model(source.model, path, weights=weights)  # type: ignore[arg-type]
    assert (result.bytes, result.weights) == (path.stat().st_size, used)
    assert result.data_files == ((path.with_name("out.onnx.data"),) if used == "copy" else ())
    saved = onnx.load(path, load_external_data=False)
    assert entries(saved) == {"embed": {}, "copy": COPIED, "reference": IN_PLACE}[used]
    after = snapshot(tmp_path / "source")
    after.pop("out.onnx", None)
    assert after == before
    onnx.checker.check_model(path)
    assert gain_of(path) == GAIN
    # The model in memory still refers to the file, so it can be saved in another way.
    assert isinstance(source.model.graph.initializers["w"].const_value, ir.ExternalTensor)


@pytest.mark.parametrize(
    ("weights", "words"),
    [("reference", r"(?s)'w'.*--weights copy"), ("link", r"(?s)link.*reference")],
)
def test_policies_that_cannot_be_met(
    weights: str, words: str, source: LoadedModel, out: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        save_model(source.model, out, weights=weights)  # type: ignore[arg-type]
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize(
    ("there", "data"),
    [
        ({"out.onnx.data": OLD, "out.onnx-2.data": OLD}, "out.onnx-3.data"),
        ({"out.onnx.data": OLD, "out.onnx-2.data": GAIN}, None),
        ({"out.onnx.data": None}, "out.onnx-2.data"),  # a link to elsewhere
        ({"out.onnx.data": GAIN, "of one file": GAIN}, "out.onnx-2.data"),
    ],
)
def test_no_data_file_is_replaced_or_copied_twice(
    there: dict[str, bytes | None], data: str | None, source: LoadedModel, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(GAIN)
    for name, content in there.items():
        if content is None:
            out.with_name(name).symlink_to(tmp_path / "elsewhere")
        else:
            out.with_name(name).write_bytes(content)
    if "of one file" in there:
        out.with_name("another name").hardlink_to(out.with_name("out.onnx.data"))
    before = snapshot(tmp_path)
    result = save_model(source.model, out, weights="copy")
    assert result.data_files == (() if data is None else (out.with_name(data),))
    assert gain_of(result.path) == GAIN
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) == {*before, "target/out.onnx", *([f"target/{data}"] if data else [])}


def test_offset_and_length_that_are_absent_stay_absent(tmp_path: Path) -> None:
    loaded = load_model(external_model(tmp_path, "./w.bin", None, None, data=GAIN))
    written = onnx.load_from_string(to_bytes(loaded.model, weights="reference"))
    assert entries(written) == {"location": "./w.bin"}


def test_several_files_shared_ranges_and_attributes(tmp_path: Path) -> None:
    """Two files, four tensors that overlap, or share data in other shapes: all in one copy."""
    folder, target = tmp_path / "source", tmp_path / "target"
    folder.mkdir()
    target.mkdir()
    (folder / "one.bin").write_bytes(GAIN * 2)
    (folder / "two.bin").write_bytes(GAIN)
    starts = {"w": 0, "v": 16, "u": 0}
    tensors = {name: external_gain("one.bin", at, 32) for name, at in starts.items()}
    for name, tensor in tensors.items():
        tensor.name = name
    tensors["u"].dims[:] = [2, 4]
    model = norm_model(initializers=[*constants(gain=False), *tensors.values()])
    gain = external_gain("two.bin", 0, 32)
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], name="c", value=gain))
    loaded = load_model(write(folder, model))
    result = save_model(loaded.model, target / "out.onnx")
    assert result.data_files == (target / "out.onnx.data",)
    saved = onnx.load(result.path)  # with its data
    for tensor in saved.graph.initializer:
        if tensor.name in starts:
            at = starts[tensor.name]
            assert tensor.raw_data == (GAIN * 2)[at : at + 32]
            assert tensor.dims == tensors[tensor.name].dims
    embedded = onnx.load_from_string(to_bytes(loaded.model, weights="embed"))
    assert saved.graph.node[-1].attribute[0].t.raw_data == GAIN
    assert embedded.graph.node[-1].attribute[0].t.raw_data == GAIN


def test_model_from_memory_beside_its_weights(source: LoadedModel, out: Path) -> None:
    assert source.path is not None
    loaded = load_model(source.path.read_bytes())
    result = save_model(loaded.model, source.path.with_name("out.onnx"))
    assert result.weights == "reference"
    with pytest.raises(InputError, match=r"'w'.*w\.bin.*No such file"):
        save_model(loaded.model, out)
    with pytest.raises(InputError, match="folder of the weights is not known"):
        to_bytes(loaded.model, weights="embed")
    source.path.with_name("w.bin").unlink()
    with pytest.raises(InputError, match="No such file"):
        save_model(source.model, source.path.with_name("again.onnx"))
    assert os.listdir(out.parent) == []


def test_more_than_two_gib_of_weights(
    source: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered: 2 GiB on disk would make the test slow, not better."""
    monkeypatch.setattr(external, "MAX_EMBEDDED_BYTES", 31)
    with pytest.raises(InputError, match=r"2 GiB.*\n.*--weights copy"):
        save_model(source.model, tmp_path / "out.onnx", weights="embed")
    model, out = load_model(norm_model()).model, tmp_path / "out.onnx"
    rows = np.arange(2048, dtype=np.float32).reshape(256, 8)
    for name in ("big", "large"):
        tensor = ir.tensor(rows + len(name), name=name)
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    before = to_bytes(model)
    out.with_name("out.onnx.data").write_bytes(OLD)
    result = save_model(model, out)
    assert result.data_files == (out.with_name("out.onnx-2.data"),)
    assert "out.onnx-2.data" in " ".join(result.notes)
    assert to_bytes(model) == before
    saved = [value.const_value for value in load_model(out).model.graph.initializers.values()]
    large = [tensor for tensor in saved if isinstance(tensor, ir.ExternalTensor)]
    assert [tensor.name for tensor in large] == ["big", "large"]
    for tensor in large:
        np.testing.assert_array_equal(tensor.numpy(), rows + len(tensor.name))
    monkeypatch.setattr(load, "MAX_PROTO_BYTES", 300)
    with pytest.raises(InputError, match="too large"):
        save_model(load_model(norm_model()).model, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def test_to_bytes_refuses_to_lose_weights(source: LoadedModel) -> None:
    for weights in ("auto", "copy"):
        with pytest.raises(UsageError, match=r"(?s)'w'.*embed"):
            to_bytes(source.model, weights=weights)  # type: ignore[arg-type]
    kept = onnx.load_from_string(to_bytes(source.model, weights="reference"))
    assert entries(kept) == IN_PLACE
    whole = onnx.load_from_string(to_bytes(source.model, weights="embed"))
    assert whole.graph.initializer[3].raw_data == GAIN


def test_text_that_cannot_be_written(tmp_path: Path) -> None:
    model = load_model(norm_model()).model
    model.doc_string = "\udcff"
    with pytest.raises(InputError, match="as protobuf"):
        save_model(model, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == []

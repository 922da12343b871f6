"""Saving: atomic, never over anything by accident, and an error for every place that refuses."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graph.folders import snapshot
from hostile_models import GAIN, external_model, norm_model, write

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph import save
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.save import check_output, save_model, to_bytes
from rmsnorm_export.system import files

OLD = b"the old file"


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a forked process; its wait status (0: it returned)."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    loaded = load_model(path)
    result = save_model(loaded.model, tmp_path / "out.onnx", source=loaded)
    assert result.path == tmp_path / "out.onnx"
    assert result.bytes == result.path.stat().st_size
    assert result.weights == "none"
    assert result.notes == ()
    assert result.data_files == ()
    assert result.path.read_bytes() == ir.to_proto(ir.load(path)).SerializeToString()
    onnx.checker.check_model(result.path, full_check=True)
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "out.onnx"}


def test_the_mode_is_that_of_a_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    model = load_model(norm_model()).model
    old = os.umask(0o027)
    try:
        save_model(model, tmp_path / "new.onnx")
    finally:
        os.umask(old)
    assert (tmp_path / "new.onnx").stat().st_mode & 0o777 == 0o640
    (tmp_path / "old.onnx").write_bytes(OLD)
    (tmp_path / "old.onnx").chmod(0o604)
    save_model(model, tmp_path / "old.onnx", force=True)
    assert (tmp_path / "old.onnx").stat().st_mode & 0o777 == 0o604


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    out.write_bytes(OLD)
    model = load_model(norm_model()).model
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match=r"exists already.*\n.*out\.onnx.*\n.*--force"):
        save_model(model, out)
    assert snapshot(tmp_path) == before
    save_model(model, out, force=True)
    assert load_model(out).size
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        out.write_bytes(OLD)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UsageError, match="exists already"):
        save_model(load_model(norm_model()).model, out)
    assert out.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_no_hard_links_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    save_model(load_model(norm_model()).model, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_output_is_the_input(tmp_path: Path) -> None:
    path = external_model(tmp_path, data=GAIN)
    loaded = load_model(path)
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="is the input"):
        save_model(loaded.model, path, source=loaded)
    assert snapshot(tmp_path) == before
    save_model(loaded.model, path, source=loaded, force=True)
    assert load_model(path).external == ("w.bin",)
    assert (tmp_path / "w.bin").read_bytes() == GAIN


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(OLD)
    out = tmp_path / "out.onnx"
    out.symlink_to("precious")
    save_model(load_model(norm_model()).model, out, force=True)
    assert not out.is_symlink()
    assert (tmp_path / "precious").read_bytes() == OLD


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "out.onnx").mkdir()
    return tmp_path / "out.onnx"


def _pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "out.onnx")
    return tmp_path / "out.onnx"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (_folder, "is a folder"),
        (_pipe, "not an ordinary file"),
        (lambda _: Path("/dev/null"), "not an ordinary file"),
        (lambda tmp_path: tmp_path / "absent" / "out.onnx", "does not exist"),
        (lambda tmp_path: tmp_path / ("x" * 300), "name too long"),
        (lambda tmp_path: f"{tmp_path}/new/", "is a folder"),
        (lambda _: "/proc/self/out.onnx", "cannot be written"),
    ],
)
def test_places_that_cannot_be_written(
    place: Callable[[Path], Path | str], words: str, tmp_path: Path
) -> None:
    target = place(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=f"(?i){words}"):
        save_model(load_model(norm_model()).model, target, force=True)
    assert snapshot(tmp_path) == before


def test_the_place_can_be_checked_before_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert check_output(out) == out
    assert check_output(os.path.relpath(out)) == out
    assert os.listdir(tmp_path) == []
    out.write_bytes(OLD)
    with pytest.raises(UsageError, match="exists already"):
        check_output(out, source=tmp_path / "absent.onnx")
    with pytest.raises(UsageError, match="is the input"):
        check_output(out, source=tmp_path / "." / "out.onnx")
    assert check_output(out, force=True) == out
    with pytest.raises(InputError, match="name too long"):
        check_output(tmp_path / ("x" * 300))
    assert out.read_bytes() == OLD


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_unusable_names(name: str) -> None:
    with pytest.raises(UsageError):
        save_model(load_model(norm_model()).model, name)


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    model = load_model(norm_model()).model
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        save_model(model, tmp_path / "out.onnx")


def test_disk_full(tmp_path: Path) -> None:
    """A file-size limit stops the write in the middle, as a full disk does."""
    model = load_model(norm_model()).model
    tensor = ir.tensor(np.zeros(1 << 18, np.float32), name="ballast")
    model.graph.register_initializer(ir.Value(name="ballast", const_value=tensor))
    out = tmp_path / "out.onnx"
    out.write_bytes(OLD)

    def attempt() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            save_model(model, out, force=True)
        except InputError as error:
            # Small enough for the limit.
            (tmp_path / "caught").write_text(str(error))

    assert in_child(attempt) == 0
    assert "File too large" in (tmp_path / "caught").read_text()
    assert "free some space" in (tmp_path / "caught").read_text()
    assert out.read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["caught", "out.onnx"]


@pytest.mark.parametrize("name", ["fsync", "chmod", "replace"])
def test_interrupt_leaves_the_old_file_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    loaded = load_model(_nested_weights(source))
    target = tmp_path / "target"
    target.mkdir()
    out = target / "out.onnx"
    out.write_bytes(OLD)
    before = snapshot(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(loaded.model, out, source=loaded, weights="copy", force=True)
    assert snapshot(tmp_path) == before


def _nested_weights(folder: Path) -> Path:
    (folder / "sub").mkdir()
    (folder / "sub" / "w.bin").write_bytes(GAIN)
    return external_model(folder, "sub/w.bin")


def test_interrupt_after_the_last_rename_keeps_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    loaded = load_model(_nested_weights(tmp_path / "source"))
    out = tmp_path / "target" / "out.onnx"
    out.write_bytes(OLD)
    real = os.replace

    def replace(old: Path, new: Path) -> None:
        real(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        save_model(loaded.model, out, source=loaded, weights="copy", force=True)
    gain = load_model(out).model.graph.initializers["w"].const_value
    assert gain is not None
    assert gain.numpy().tobytes() == GAIN


def _killer(name: str, count: int, after: bool) -> None:
    """The ``count``-th call of ``os.<name>`` kills the process; nothing is cleaned up."""
    real = getattr(os, name)
    calls = 0

    def killer(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls < count:
            return real(*args, **options)
        if after:
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(os, name, killer)


KILLS = [("open", 1), ("open", 2), ("fsync", 1), ("fsync", 2), ("link", 1), ("fsync", 3)]
KILLS += [("fdopen", 1), ("chmod", 1), ("replace", 1), ("fsync", 4)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("name", "count"), KILLS)
def test_kill_leaves_the_old_file_or_the_new_one(
    name: str, count: int, after: bool, tmp_path: Path
) -> None:
    """Weights are copied, then the model replaces an old one; killed at every step of it."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    loaded = load_model(_nested_weights(tmp_path / "source"))
    source_before = snapshot(tmp_path / "source")
    out = tmp_path / "target" / "out.onnx"
    old = norm_model().SerializeToString()
    out.write_bytes(old)

    def attempt() -> None:
        _killer(name, count, after)
        save_model(loaded.model, out, source=loaded, weights="copy", force=True)

    assert in_child(attempt) == signal.SIGKILL
    assert snapshot(tmp_path / "source") == source_before
    if out.read_bytes() != old:
        gain = load_model(out).model.graph.initializers["w"].const_value
        assert gain is not None
        assert gain.numpy().tobytes() == GAIN
    finished = {"out.onnx", "w.bin"}
    for path in (tmp_path / "target").rglob("*"):
        if path.is_file() and path.name not in finished:
            assert path.name.startswith(".")
            assert path.name.endswith(files.TEMP_SUFFIX)
    # What was left behind does not stand in the way.
    save_model(loaded.model, out, source=loaded, weights="copy", force=True)
    assert load_model(out).external


def test_more_than_two_gib_of_stored_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered: 2 GiB on disk would make the test slow, not better."""
    monkeypatch.setattr(save, "MAX_EMBEDDED_BYTES", 4000)
    model = load_model(norm_model()).model
    rows = np.arange(2048, dtype=np.float32).reshape(256, 8)
    for name in ("big", "large"):
        tensor = ir.tensor(rows + len(name), name=name)
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    before = to_bytes(model)
    (tmp_path / "out.onnx.data").write_bytes(OLD)
    result = save_model(model, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == OLD
    assert result.data_files == (tmp_path / "out.onnx-2.data",)
    assert "out.onnx-2.data" in " ".join(result.notes)
    assert to_bytes(model) == before
    saved = load_model(result.path)
    assert saved.external == ("out.onnx-2.data",)
    for name in ("big", "large"):
        value = saved.model.graph.initializers[name].const_value
        assert isinstance(value, ir.ExternalTensor)
        np.testing.assert_array_equal(value.numpy(), rows + len(name))
    eps = saved.model.graph.initializers["eps"].const_value
    assert not isinstance(eps, ir.ExternalTensor)
    onnx.checker.check_model(result.path)
    with pytest.raises(InputError, match="do not fit into one model file"):
        save_model(model, tmp_path / "embedded.onnx", weights="embed")
    assert not (tmp_path / "embedded.onnx").exists()


def test_a_constant_that_cannot_be_moved_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "MAX_PROTO_BYTES", 300)
    with pytest.raises(InputError, match="too large"):
        save_model(load_model(norm_model()).model, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == []


def test_to_bytes_refuses_to_lose_weights(tmp_path: Path) -> None:
    loaded = load_model(external_model(tmp_path, data=GAIN))
    for weights in ("auto", "copy"):
        with pytest.raises(UsageError, match=r"(?s)'w'.*embed"):
            to_bytes(loaded.model, weights=weights)  # type: ignore[arg-type]
    kept = onnx.load_from_string(to_bytes(loaded.model, weights="reference"))
    assert {e.key: e.value for e in kept.graph.initializer[3].external_data} == {
        "location": "w.bin",
        "offset": "0",
        "length": "32",
    }
    whole = onnx.load_from_string(to_bytes(loaded.model, weights="embed"))
    assert whole.graph.initializer[3].raw_data == GAIN
    assert isinstance(loaded.model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_to_bytes_without_the_folder(tmp_path: Path) -> None:
    loaded = load_model(external_model(tmp_path, data=GAIN).read_bytes())
    with pytest.raises(InputError, match="has no folder"):
        to_bytes(loaded.model, weights="embed")


def test_text_that_cannot_be_written(tmp_path: Path) -> None:
    model = load_model(norm_model()).model
    model.doc_string = "\udcff"
    with pytest.raises(InputError, match="not UTF-8"):
        save_model(model, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == []

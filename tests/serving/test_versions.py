"""What is in the repository already is kept, and nothing is ever half made."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from rmsnorm_export.errors import Error, InputError, UsageError, VerificationError
from rmsnorm_export.serving import contents, package
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.system import folders
from tests import warm
from tests.serving.models import (
    batch_mean_model,
    decoder_model,
    identity_model,
    needs_triton,
    norm_model,
    tree,
)

pytestmark = needs_triton


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A repository with version 1 of ``net``."""
    package_model(norm_model(), tmp_path / "models", name="net")
    return tmp_path / "models" / "net"


def _add(folder: Path, **options: object) -> None:
    package_model(norm_model(scale=2.0), folder.parent, name="net", **options)  # type: ignore[arg-type]


def test_a_second_version(first: Path) -> None:
    config = first / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 5  # edited"))
    (first / "notes.txt").write_text("mine")
    (first / "warmup").mkdir()
    before = tree(first)
    _add(first, version=2)
    after = tree(first)
    assert set(after) - set(before) == {"2", "2/model.onnx"}
    for name in ("config.pbtxt", "notes.txt", "1/model.onnx", "warmup"):
        assert after[name] == before[name]
    assert after["2/model.onnx"] != after["1/model.onnx"]
    assert "## Version 1" in (first / "README.md").read_text()
    assert [path.name for path in first.parent.parent.iterdir()] == ["models"], "nothing is left"
    assert os.stat(first / "1/model.onnx").st_nlink == 1


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (decoder_model(), "another input"),
        (identity_model(TensorProto.FLOAT, ("batch", 40)), ""),
        (identity_model(TensorProto.FLOAT16, ("batch", 40)), "another input"),
        (identity_model(TensorProto.FLOAT, ("batch", 41)), "another input"),
        (identity_model(TensorProto.FLOAT, (4, 40)), "cannot join"),
        (batch_mean_model(), "change each other"),
    ],
    ids=["names", "same", "type", "shape", "no batch", "mixed"],
)
def test_inputs_and_outputs_must_agree(first: Path, model: onnx.ModelProto, word: str) -> None:
    before = tree(first.parent.parent)
    if not word:
        package_model(model, first.parent, name="net", version=2)
        return
    with pytest.raises(Error, match=word):
        package_model(model, first.parent, name="net", version=2)
    assert tree(first.parent.parent) == before


def test_an_existing_version_needs_force(first: Path) -> None:
    before = tree(first)
    with pytest.raises(UsageError, match="version exists") as error:
        _add(first)
    assert "--version 2" in error.value.fix
    assert tree(first) == before
    _add(first, version=2)
    (first / "notes.txt").write_text("mine")
    kept = tree(first / "2")
    _add(first, force=True, instances=4)
    assert tree(first / "2") == kept
    assert tree(first)["1/model.onnx"] != before["1/model.onnx"]
    assert (first / "notes.txt").read_text() == "mine"
    assert "count: 4" in (first / "config.pbtxt").read_text()


def test_force_does_not_break_the_versions_that_are_kept(first: Path) -> None:
    _add(first, version=2)
    before = tree(first)
    for model in (decoder_model(), identity_model(TensorProto.FLOAT16, ("batch", 40))):
        with pytest.raises(InputError, match="versions that are kept"):
            package_model(model, first.parent, name="net", version=2, force=True)
    assert tree(first) == before
    _add(first, version=2, force=True, max_batch=0)
    assert "## Version 1" in (first / "README.md").read_text()


def test_options_of_the_shared_configuration(first: Path) -> None:
    for option in ({"max_batch": 4}, {"kind": "cpu"}, {"warmup": False}, {"instances": 2}):
        with pytest.raises(UsageError, match="further version"):
            _add(first, version=2, **option)


def test_files_of_others_are_never_replaced(first: Path, tmp_path: Path) -> None:
    (first / "1" / "vocabulary.txt").write_text("mine")
    (first / "2").mkdir()
    (first / "2" / "model.onnx").write_text("mine")
    other = first.parent / "other"
    other.mkdir()
    (other / "config.pbtxt").write_text('name: "other"')
    before = tree(tmp_path)
    for name, version in (("net", 1), ("net", 2), ("other", 1)):
        with pytest.raises(UsageError, match="this tool did not make"):
            package_model(norm_model(), first.parent, name=name, version=version, force=True)
    assert tree(tmp_path) == before


def test_a_card_that_was_edited(first: Path) -> None:
    (first / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="changed since"):
        _add(first, version=2)
    assert (first / "README.md").read_text() == "mine"


def test_a_damaged_configuration(first: Path) -> None:
    (first / "config.pbtxt").write_text("name: [")
    with pytest.raises(InputError, match="cannot be read"):
        _add(first, version=2)
    _add(first, version=2, force=True)


def test_a_link_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models" / "net").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no folder"):
        package_model(norm_model(), tmp_path / "models", name="net", force=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("at", ["config.pbtxt", "README.md", "rmsnorm_export.json"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, version: int
) -> None:
    if version == 2:
        package_model(norm_model(), tmp_path / "models", name="net")
        at = "README.md" if at == "config.pbtxt" else at
    before = tree(tmp_path)
    write = contents.write_whole

    def full(target: Path, text: str) -> None:
        if target.name == at:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        write(target, text)

    monkeypatch.setattr(contents, "write_whole", full)
    with pytest.raises(InputError, match="cannot be written") as error:
        package_model(norm_model(), tmp_path / "models", name="net", version=version)
    assert "free some space" in error.value.fix
    assert tree(tmp_path) == before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_model_that_fails_in_its_final_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, atomic: bool
) -> None:
    if version == 2:
        package_model(norm_model(), tmp_path / "models", name="net")
    before = tree(tmp_path)
    seen = []

    def fail(path: Path, *_: object) -> None:
        seen.append(path.is_file())
        raise VerificationError("it does not load")

    monkeypatch.setattr(package, "answers", fail)
    if not atomic:
        monkeypatch.setattr(folders, "_renameat2", lambda *_: False)
    with pytest.raises(VerificationError, match="does not load"):
        package_model(norm_model(scale=3.0), tmp_path / "models", name="net", version=version)
    assert seen == [True]
    assert tree(tmp_path) == before


def test_a_file_system_without_exchange_and_links(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(folders, "_renameat2", lambda *_: False)
    monkeypatch.setattr(os, "link", no_link)
    before = tree(first)
    _add(first, version=2)
    assert tree(first)["1/model.onnx"] == before["1/model.onnx"]
    assert [path.name for path in first.parent.parent.iterdir()] == ["models"]


def test_a_file_that_appears_meanwhile_survives(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = folders.Stage.publish

    def late(self: folders.Stage) -> None:
        (first / "late.txt").write_text("mine")
        publish(self)

    monkeypatch.setattr(folders.Stage, "publish", late)
    _add(first, version=2)
    assert [path.read_text() for path in first.parent.parent.rglob("late.txt")] == ["mine"]


_KILLED = """
import os, signal, sys
from rmsnorm_export.system import folders
from rmsnorm_export.serving.package import package_model
from tests.serving.models import norm_model
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(folders.Stage, sys.argv[2], die)
package_model(norm_model(scale=5.0), sys.argv[1], name="net", version=int(sys.argv[3]))
"""


@pytest.mark.parametrize(("at", "done"), [("publish", False), ("_drop_old", True)])
def test_a_kill(first: Path, at: str, done: bool) -> None:
    before = tree(first)
    ended = warm.run(_KILLED, first.parent, at, 2)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ("2/model.onnx" in tree(first)) == done
    if not done:
        assert tree(first) == before
    assert [path.name for path in first.parent.iterdir()] == ["net"], "no half model to load"
    _add(first, version=3)

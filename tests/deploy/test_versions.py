"""What is in the repository already is kept, and nothing is ever half made."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from rmsnorm_export.deploy import package
from rmsnorm_export.deploy.package import package_model
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.system import files
from tests import warm
from tests.deploy import models
from tests.deploy.models import tree


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A repository with version 1 of ``net``."""
    package_model(models.norm(), tmp_path / "models", name="net")
    return tmp_path / "models" / "net"


def add(folder: Path, model: Any = None, **options: Any) -> None:
    package_model(model or models.norm(scale=2.0), folder.parent, name="net", **options)


def test_a_second_version(first: Path) -> None:
    config = first / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 5  # edited"))
    (first / "notes.txt").write_text("mine")
    before = tree(first)
    add(first, version=2)
    after = tree(first)
    assert set(after) - set(before) == {"2", "2/model.onnx", "2/package.json"}
    assert {name for name in before if after[name] != before[name]} == set()
    assert after["2/model.onnx"] != after["1/model.onnx"]
    assert [path.name for path in first.parent.parent.iterdir()] == ["models"], "nothing is left"


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (models.decoder(), "does not fit"),
        (models.identity(TensorProto.FLOAT16, ("batch", 40)), "does not fit"),
        (models.identity(TensorProto.FLOAT, ("batch", 41)), "does not fit"),
        (models.identity(TensorProto.FLOAT, (4, 40)), "cannot join"),
        (models.batch_mean(), "change each other"),
    ],
    ids=["names", "type", "shape", "no batch", "mixed"],
)
def test_inputs_and_outputs_must_agree(first: Path, model: onnx.ModelProto, word: str) -> None:
    before = tree(first.parent.parent)
    with pytest.raises(Error, match=word):
        add(first, model, version=2)
    assert tree(first.parent.parent) == before


def test_an_existing_version_needs_force(first: Path) -> None:
    before = tree(first)
    with pytest.raises(UsageError, match="is taken") as error:
        add(first)
    assert "--version 2" in error.value.fix
    assert tree(first) == before
    add(first, version=2)
    (first / "notes.txt").write_text("mine")
    kept = tree(first / "2")
    add(first, force=True, kind="cpu")
    assert tree(first / "2") == kept
    assert tree(first)["1/model.onnx"] != before["1/model.onnx"]
    assert (first / "notes.txt").read_text() == "mine"
    assert "KIND_CPU" in (first / "config.pbtxt").read_text()
    with pytest.raises(InputError, match="does not fit"):
        add(first, models.decoder(), version=2, force=True)


def test_files_of_others_are_never_replaced(first: Path, tmp_path: Path) -> None:
    (first / "2").mkdir()
    (first.parent / "other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("1/vocabulary.txt", "2/model.onnx", "../other/config.pbtxt"):
        (first / name).write_text("mine")
    (first.parent / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    for name, version in (("net", 1), ("net", 2), ("other", 1), ("link", 1)):
        with pytest.raises(UsageError, match="is taken"):
            package_model(models.norm(), first.parent, name=name, version=version, force=True)
    for repository in (tmp_path / "no" / "such", tmp_path / "file"):
        with pytest.raises(InputError, match="cannot be written"):
            package_model(models.norm(), repository, name="t")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("at", ["config.pbtxt", "package.json"])
@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk(first: Path, monkeypatch: pytest.MonkeyPatch, at: str, force: bool) -> None:
    before, write = tree(first.parent), package.write_whole

    def full(target: Path, text: str) -> None:
        if target.name == at:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        write(target, text)

    monkeypatch.setattr(package, "write_whole", full)
    with pytest.raises(InputError, match="cannot be written") as error:
        package_model(models.norm(), first.parent, name="net" if force else "new", force=force)
    assert "space" in error.value.fix
    assert tree(first.parent) == before


KILLED = """
import os, signal, sys
from rmsnorm_export.system import files
from rmsnorm_export.deploy.package import package_model
from tests.deploy import models
class Deadly:
    def rmtree(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
    __call__ = rmtree
setattr(files, sys.argv[2], Deadly())
package_model(models.norm(scale=5.0), sys.argv[1], name="net", version=2)
"""


@pytest.mark.parametrize(("at", "done"), [("_publish", False), ("shutil", True)])
def test_a_kill(first: Path, at: str, done: bool) -> None:
    before = tree(first)
    ended = warm.run(KILLED, first.parent, at)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ("2/model.onnx" in tree(first)) == done
    assert done or tree(first) == before
    assert [path.name for path in first.parent.iterdir()] == ["net"], "no half model to load"
    add(first, version=3)


def test_neither_exchange_nor_links(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(files, "renameat2", lambda *_: False)
    monkeypatch.setattr(os, "link", no_link)
    before = tree(first)
    add(first, version=2)
    assert tree(first)["1/model.onnx"] == before["1/model.onnx"]
    assert [path.name for path in first.parent.parent.iterdir()] == ["models"]

"""``rmsnorm-export package``: output, exit codes, and what is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.deploy.models import norm_model, save_external, tree


def test_package(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("package", three, "-o", "models", "--name", "net", "--max-batch", 4)
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    assert done.text.startswith("packaged net, version 1, for onnxruntime: batches up to 4\n")
    assert f"wrote {tmp_path}/models/net" in done.text
    again = run("package", three, "-o", "models", "--name", "net", "--version", 2, "-q")
    assert again.text == "packaged net, version 2, for onnxruntime: batches up to 4\n"
    (tmp_path / "models" / "net" / "2" / "model.onnx").read_bytes()


def test_exit_codes(run: Run, three: Path, tmp_path: Path) -> None:
    run("package", three, "-o", "models")
    before = tree(tmp_path)
    run("package", three, "-o", "models").assert_error(2, "exists already", "--version 2")
    run("package", three, "-o", "n", "--name", "../x").assert_error(2, "name of the model")
    run("package", "none.onnx", "-o", "n").assert_error(3, "does not exist")
    run("package", three, "-o", "no/such").assert_error(3, "repository")
    assert run("package", three, "-o", "n", "--version", 0).code == 2
    assert tree(tmp_path) == before
    source = save_external(norm_model(), tmp_path / "src" / "net.onnx", "w.bin")
    (source.parent / "w.bin").unlink()
    run("package", source, "-o", "n").assert_error(3, "w.bin")
    assert not (tmp_path / "n").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: run as another user")
def test_a_repository_without_permission(run: Run, three: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0o500)
    run("package", three, "-o", "models").assert_error(3, "permission")

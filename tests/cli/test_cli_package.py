"""``rmsnorm-export package``: output, exit codes, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Run
from tests.serving.models import needs_kserve, needs_triton, norm_model, save_external, tree


@needs_triton
def test_package(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("package", three, "-o", "models", "--name", "net", "--max-batch", 4)
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    assert done.text.startswith("packaged net, version 1, for onnxruntime\n")
    assert f"wrote {tmp_path}/models/net" in done.text
    again = run("package", three, "-o", "models", "--name", "net", "--version", 2, "-q")
    assert again.text == "packaged net, version 2, for onnxruntime\n"
    (tmp_path / "models" / "net" / "2" / "model.onnx").read_bytes()


@needs_triton
def test_json(run: Run, three: Path) -> None:
    done = run("package", three, "-o", "models", "--format", "json").json
    assert (done["kind"], done["version"]) == ("packaged", 1)
    assert done["record"]["inputs"] == [{"name": "x", "dtype": "TYPE_FP32", "shape": [-1, 40]}]
    assert done["record"]["versions"][0]["files"][0]["path"] == "1/model.onnx"


@needs_triton
def test_stdin(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("package", "-", "-o", "models", "--name", "net", stdin=three.read_bytes())
    assert done.code == 0, done.stderr
    assert (tmp_path / "models/net/1/model.onnx").is_file()


@needs_triton
@needs_kserve
def test_kserve(run: Run, three: Path, tmp_path: Path) -> None:
    arguments = ["--kserve", "s3://bucket/models", "--kserve-replicas", 0, 4, "--kserve-gpus", 2]
    done = run("package", three, "-o", "models", *arguments)
    assert done.code == 0, done.stderr
    text = (tmp_path / "models/three/inferenceservice.yaml").read_text()
    assert "maxReplicas: 4" in text
    assert "nvidia.com/gpu: '2'" in text
    lone = run("package", three, "-o", "other", "--kserve-cpu", 2)
    lone.assert_error(2, "--kserve URI")


@needs_triton
def test_exit_codes(run: Run, three: Path, tmp_path: Path) -> None:
    run("package", three, "-o", "models")
    before = tree(tmp_path)
    run("package", three, "-o", "models").assert_error(2, "exists already", "--version 2")
    run("package", three, "-o", "n", "--name", "../x").assert_error(2, "name of the model")
    run("package", "none.onnx", "-o", "n").assert_error(3, "does not exist")
    run("package", three, "-o", "no/such").assert_error(3, "repository")
    run("package", three, "-o", "n", "--backend", "tensorrt").assert_error(2, "backend")
    run("package", three, "-o", "n", "--report", "none.json").assert_error(3, "none.json")
    assert run("package", three, "-o", "n", "--version", 0).code == 2
    assert tree(tmp_path) == before
    source = save_external(norm_model(), tmp_path / "src" / "net.onnx", "w.bin")
    (source.parent / "w.bin").unlink()
    run("package", source, "-o", "n").assert_error(3, "w.bin")
    assert not (tmp_path / "n").exists()


@needs_triton
def test_a_failed_check_is_exit_code_4(run: Run, tmp_path: Path) -> None:
    from tests.serving.models import batch_mean_model

    onnx.save(batch_mean_model(), tmp_path / "mean.onnx")
    run("package", "mean.onnx", "-o", "models", "--max-batch", 4).assert_error(4, "each other")
    assert not (tmp_path / "models").exists()


def test_without_tritonclient(three: Path, tmp_path: Path) -> None:
    hidden = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'tritonclient' else find(n, *a)\n"
        "from rmsnorm_export.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, "package", str(three), "-o", str(tmp_path / "models")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6
    assert "fix: pip install 'tritonclient>=2.69' 'PyYAML>=6'" in done.stderr
    assert not (tmp_path / "models").exists()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom rmsnorm_export.cli.main import main\n"
        "assert main(['package', '--help']) == 0\n"
        "heavy = {'onnx', 'onnx_ir', 'numpy', 'google.protobuf', 'yaml', 'rich', 'onnxruntime'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "REPOSITORY/NAME/VERSION" in done.stdout


@needs_triton
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: run as another user")
def test_a_repository_without_permission(run: Run, three: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0o500)
    run("package", three, "-o", "models").assert_error(3, "permission")

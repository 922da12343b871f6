"""A wheel that is built here has the kernels for ONNX Runtime; one without a compiler is pure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


pytest.importorskip("scikit_build_core", reason="pip install scikit-build-core")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what a release has."""
    folder = tmp_path / "sources"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build")
    for name in ("rmsnorm_export", "plugins"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=hidden)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize("variable", ["CXX=no-such-compiler", "RMSNORM_EXPORT_PURE=1"])
def test_without_a_compiler_the_wheel_is_pure(sources: Path, variable: str) -> None:
    code = "import scikit_build_core.build as b; print(b.build_wheel('dist'))"
    environment = os.environ | dict([variable.split("=")])
    subprocess.run([sys.executable, "-c", code], cwd=sources, env=environment, check=True)
    (wheel,) = (sources / "dist").glob("*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rmsnorm_export/tensorrt/plugin/_sources/CMakeLists.txt" in names
    assert not [name for name in names if "/tests/" in name or "/_built/" in name]


@pytest.mark.thorough
def test_a_wheel_of_this_machine_is_enough(sources: Path, tmp_path: Path) -> None:
    """Installed with [ort] in an environment of its own: a norm without a body runs."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    constraints = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, *constraints, f"{sources}[ort]"], check=True)
    program = '''
import numpy as np, onnx.parser, onnxruntime, rmsnorm_export as rx
model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17, "rmsnorm_export": 1]>
norm (float[2, 8] x) => (float[2, 8] y) { y = rmsnorm_export.RMSNorm(x) }""")
session = onnxruntime.InferenceSession(model.SerializeToString(), rx.session_options())
x = np.ones((2, 8), np.float32)
print(float(session.run(None, {"x": x})[0].sum()), rx.plugin.onnxruntime_library())
'''
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    shown = subprocess.check_output([python, "-c", program], cwd=tmp_path, env=environment)
    value, library = shown.decode().split()
    assert float(value) == pytest.approx(16, rel=1e-4)
    assert str(tmp_path / "venv") in library

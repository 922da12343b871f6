"""The source distribution has what a build needs and nothing else, and installs without a compiler;
the wheel of a release has the kernels for ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]


pytest.importorskip("scikit_build_core", reason="pip install scikit-build-core")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what a release has."""
    folder = tmp_path / "sources"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build")
    for name in ("rmsnorm_export", "plugins"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=hidden)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def _built(what: str, sources: Path, **environment: str) -> Path:
    """Build the ``wheel`` or the ``sdist`` of a folder in it."""
    code = f"import scikit_build_core.build as b; b.build_{what}('dist')"
    environment = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", code], cwd=sources, env=environment, check=True)
    (place,) = (sources / "dist").iterdir()
    return place


def test_the_source_distribution_is_what_a_build_needs(sources: Path, tmp_path: Path) -> None:
    """Of it a wheel is made that has the same files as one of the checkout."""
    for name in ("notes.txt", "tests/test_x.py", "rmsnorm_export/__pycache__/x.pyc"):
        (sources / name).parent.mkdir(exist_ok=True)
        (sources / name).touch()
    with tarfile.open(_built("sdist", sources)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("rmsnorm_export-*")
    shutil.rmtree(sources / "dist")
    top = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", "rmsnorm_export"}
    assert {path.name for path in unpacked.iterdir()} == top
    inside = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    wheels = [_built("wheel", place) for place in (sources, unpacked)]
    assert wheels[0].name.endswith("-py3-none-any.whl")  # nothing is compiled
    names = [sorted(zipfile.ZipFile(wheel).namelist()) for wheel in wheels]
    assert names[0] == names[1]
    packaged = "rmsnorm_export/tensorrt/plugin/_sources"
    assert f"{packaged}/CMakeLists.txt" in names[0]
    assert f"{packaged}/kernels/plugin_limits.h" in names[0]  # which optimize reads
    assert not [name for name in names[0] if "/tests/" in name or "/_built/" in name]
    assert inside - set(names[1]) == top - {"rmsnorm_export"}
    metadata = zipfile.ZipFile(wheels[1]).read(next(n for n in names[1] if n.endswith("METADATA")))
    checked = Metadata.from_email(metadata, validate=True)  # as an index does
    assert checked.description_content_type == "text/markdown"
    assert checked.description == (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_wheel_with_kernels_has_them_or_there_is_none(sources: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _built("wheel", sources, RMSNORM_EXPORT_KERNELS="1", CXX="no-such-compiler")


@pytest.mark.thorough
def test_the_wheel_of_a_release_is_enough(sources: Path, tmp_path: Path) -> None:
    """Installed with [ort] in an environment of its own: a norm without a body runs."""
    for name in ("constraints.txt", "scripts"):
        (sources / name).symlink_to(ROOT / name)
    subprocess.run([sources / "scripts" / "wheel"], check=True)
    source, wheel = sorted((sources / "dist").iterdir(), key=lambda path: path.suffix)
    assert source.name.endswith(".tar.gz")
    assert "-py3-none-manylinux" in wheel.name
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    constraints = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, *constraints, f"{wheel}[ort]"], check=True)
    program = '''
import numpy as np, onnx.parser, onnxruntime, rmsnorm_export as rx
model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17, "rmsnorm_export": 1]>
norm (float[2, 8] x) => (float[2, 8] y) { y = rmsnorm_export.RMSNorm(x) }""")
session = onnxruntime.InferenceSession(model.SerializeToString(), rx.session_options())
x = np.ones((2, 8), np.float32)
built = rx.plugin.build(runtime="onnxruntime").path("register")  # nothing is compiled again
assert built == rx.plugin.onnxruntime_library()
print(float(session.run(None, {"x": x})[0].sum()), built)
'''
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    shown = subprocess.check_output([python, "-c", program], cwd=tmp_path, env=environment)
    value, library = shown.decode().split()
    assert float(value) == pytest.approx(16, rel=1e-4)
    assert str(tmp_path / "venv") in library

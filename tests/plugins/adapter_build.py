"""Builds of plugins/ through CMake, for tests: in the user's cache, brought up to date by ninja.

TensorRT's headers are in no wheel, so a machine without them (CI) skips all tests that need a
build; ``NEEDED`` is the sentence they skip with.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess

import pytest
from filelock import FileLock

from rmsnorm_export.tensorrt.plugin.building import _which
from tests.plugins.kernel_build import NO_NVCC, PLUGINS, find_nvcc
from toolbox.corpus import cache

NEEDED = (
    "needs TensorRT's C++ headers of 10.8 or later, as in its packages or include/ of "
    "github.com/NVIDIA/TensorRT: TENSORRT_INCLUDE_DIR=<TensorRT>/include pytest tests/plugins"
)
SYSTEM = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include")


def find_tensorrt() -> pathlib.Path | None:
    """The folder of TensorRT's headers."""
    named = os.environ.get("TENSORRT_INCLUDE_DIR")
    folders = [pathlib.Path(name) for name in ([named] if named else SYSTEM)]
    folder = next((one for one in folders if (one / "NvInferRuntime.h").is_file()), None)
    if named and folder is None:
        raise FileNotFoundError(f"no NvInferRuntime.h in {named}, which was named")
    return folder


def missing_tools() -> str | None:
    """Programs that are needed besides the headers and not here."""
    if find_nvcc() is None:
        return NO_NVCC
    missing = [name for name in ("g++", "cmake", "ninja") if not _which(name)]
    return f"needs {', '.join(missing)}" if missing else None


def cmake(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run CMake in an environment that names no TensorRT and no CUDA."""
    names = ("TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT", "CUDA_HOME", "CUDAARCHS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [_which("cmake") or "cmake", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=clean, check=False)


def succeeded(process: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-6000:]
    return process


def configure(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configure plugins/ in ``folder`` with the nvcc of the tests.

    With these options and none of those before; architectures stay those of the first time.
    """
    programs = (f"-DCMAKE_MAKE_PROGRAM={_which('ninja')}", f"-DCMAKE_CUDA_COMPILER={find_nvcc()}")
    forgotten = ("-UTENSORRT_*", "-URMSNORM_*")
    return cmake("-S", PLUGINS, "-B", folder, "-G", "Ninja", *programs, *forgotten, *options)


def build() -> pathlib.Path:
    """The build folder: both libraries and the test program, with warnings as errors.

    One architecture is enough to link; the kernels' own tests compile for all of them.

    Raises:
        AssertionError: CMake or a compiler failed; the message is what it said.
    """
    headers = find_tensorrt()
    if reason := NEEDED if headers is None else missing_tools():
        pytest.skip(reason)
    key = hashlib.sha256(f"{PLUGINS} {headers} {find_nvcc()}".encode()).hexdigest()[:12]
    folder = cache.root() / "adapter-tests" / key
    folder.mkdir(parents=True, exist_ok=True)
    options = (
        f"-DTENSORRT_INCLUDE_DIR={headers}", "-DRMSNORM_TESTS=ON",
        "-DCMAKE_CUDA_ARCHITECTURES=90-real", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
    )  # fmt: skip
    with FileLock(folder / ".lock"):
        succeeded(configure(folder, *options))
        succeeded(cmake("--build", folder, "--parallel", 2))
    return folder

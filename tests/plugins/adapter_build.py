"""Builds of plugins/ through CMake, for tests: in the user's cache, brought up to date by ninja.

TensorRT's headers are in no wheel, so a machine without them (CI) skips all tests that need a
build; ``NEEDED`` is the sentence they skip with. ``TENSORRT_INCLUDE_DIR`` may name several folders,
separated by ``:``; the tests then go through each.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from kernel_build import PLUGINS, find_nvcc

NEEDED = (
    "needs TensorRT's C++ headers: TENSORRT_INCLUDE_DIR=<TensorRT>/include pytest tests/plugins "
    "(from the deb or tar package of TensorRT 10.8 or later, or from include/ of "
    "github.com/NVIDIA/TensorRT)"
)
SYSTEM = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include")
ARCHITECTURE = "90-real"
"""One is enough to link; the kernels' own tests compile for all of them."""


def header_folders() -> list[pathlib.Path]:
    """Folders with NvInferRuntime.h, the named ones or else the first of the system."""
    named = os.environ.get("TENSORRT_INCLUDE_DIR", "").split(os.pathsep)
    root = os.environ.get("TENSORRT_ROOT")
    candidates = [pathlib.Path(name) for name in named if name]
    if not candidates and root:
        candidates = [pathlib.Path(root) / "include"]
    if candidates:
        for folder in candidates:
            if not (folder / "NvInferRuntime.h").is_file():
                raise FileNotFoundError(f"no NvInferRuntime.h in {folder}, which was named")
        return candidates
    found = [pathlib.Path(name) for name in SYSTEM]
    return [folder for folder in found if (folder / "NvInferRuntime.h").is_file()][:1]


def header_parameters() -> list[object]:
    """For ``pytest.mark.parametrize``: each folder, or one that skips with the reason."""
    folders = header_folders()
    if not folders:
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=NEEDED))]
    missing = missing_tools()
    skip = [pytest.mark.skip(reason=missing)] if missing else []
    return [
        pytest.param(folder, id=f"TensorRT-{version(folder)}", marks=skip) for folder in folders
    ]


def version(headers: pathlib.Path) -> str:
    """Version of the headers, such as ``11.1``."""
    text = (headers / "NvInferVersion.h").read_text(encoding="utf-8")
    return ".".join(
        re.findall(rf"define (?:NV_TENSORRT|TRT)_{part}(?:_ENTERPRISE)? +(\d+)", text)[0]
        for part in ("MAJOR", "MINOR")
    )


def missing_tools() -> str | None:
    """What is needed besides the headers and not here."""
    if find_nvcc() is None:
        return "needs nvcc: pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl"
    if shutil.which("g++") is None:
        return "needs g++"
    if tool("cmake") is None or tool("ninja") is None:
        return "needs CMake and ninja: pip install cmake ninja"
    return None


def tool(name: str) -> str | None:
    """A program beside this Python, else on PATH."""
    beside = pathlib.Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def cmake(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs CMake in an environment that names no TensorRT and no CUDA but what is given."""
    names = ("TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT", "CUDA_HOME", "CUDAARCHS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [tool("cmake") or "cmake", *map(str, arguments)],
        capture_output=True, text=True, env={**clean, **environment}, check=False,
    )  # fmt: skip


def configure(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configures plugins/ in ``folder`` with the nvcc of the tests."""
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    return cmake(
        "-S", PLUGINS, "-B", folder, *generator, f"-DCMAKE_CUDA_COMPILER={find_nvcc()}", *options
    )


@functools.cache
def build(headers: pathlib.Path) -> pathlib.Path:
    """The build folder: both libraries and the test programs, with warnings as errors.

    Raises:
        AssertionError: CMake or a compiler failed; the message is what it said.
    """
    folder = _cache() / f"adapter-{version(headers)}-{_key(headers)}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build.ninja").is_file():
            _done(
                configure(
                    folder, f"-DTENSORRT_INCLUDE_DIR={headers}", "-DRMSNORM_TESTS=ON",
                    f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURE}",
                    "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
                )
            )  # fmt: skip
        _done(cmake("--build", folder, "--parallel", min(2, os.cpu_count() or 1)))
    return folder


def _done(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-6000:]


def _cache() -> pathlib.Path:
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "rmsnorm_export" / "adapter-tests"


def _key(headers: pathlib.Path) -> str:
    """Changes with the compilers, the headers and the place of the sources; ninja sees the rest."""
    digest = hashlib.sha256(f"{PLUGINS} {headers}".encode())
    for path in sorted(headers.glob("NvInfer*.h")):
        digest.update(path.read_bytes())
    for compiler in (str(find_nvcc()), "g++"):
        shown = subprocess.run([compiler, "--version"], capture_output=True, check=True)
        digest.update(shown.stdout)
    return digest.hexdigest()[:12]

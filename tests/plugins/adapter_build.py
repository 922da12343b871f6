"""Builds of plugins/ through CMake, for tests: in the user's cache, brought up to date by ninja.

TensorRT's headers are in no wheel, so a machine without them (CI) skips all tests that need a
build; ``NEEDED`` is the sentence they skip with.
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
import sysconfig

import pytest
from kernel_build import PLUGINS, find_nvcc

NEEDED = (
    "needs TensorRT's C++ headers: TENSORRT_INCLUDE_DIR=<TensorRT>/include pytest tests/plugins "
    "(from the deb or tar package of TensorRT 10.8 or later, or from include/ of "
    "github.com/NVIDIA/TensorRT)"
)
SYSTEM = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include")


def header_parameters() -> list[object]:
    """For ``pytest.mark.parametrize``: the folder of the headers, or one skip with the reason."""
    named = os.environ.get("TENSORRT_INCLUDE_DIR")
    folders = [pathlib.Path(name) for name in ([named] if named else SYSTEM)]
    folder = next((one for one in folders if (one / "NvInferRuntime.h").is_file()), None)
    if named and folder is None:
        raise FileNotFoundError(f"no NvInferRuntime.h in {named}, which was named")
    reason = NEEDED if folder is None else missing_tools()
    if folder is None or reason:
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason or NEEDED))]
    return [pytest.param(folder, id=f"TensorRT-{version(folder)}")]


def version(headers: pathlib.Path) -> str:
    """Version of the headers, such as ``11.1``."""
    text = (headers / "NvInferVersion.h").read_text(encoding="utf-8")
    define = r"define (?:NV_TENSORRT|TRT)_{}(?:_ENTERPRISE)? +(\d+)"
    return ".".join(re.findall(define.format(part), text)[0] for part in ("MAJOR", "MINOR"))


def missing_tools() -> str | None:
    """Programs that are needed besides the headers and not here."""
    if find_nvcc() is None:
        return "needs nvcc: pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl"
    missing = [name for name in ("g++", "cmake", "ninja") if tool(name) is None]
    return f"needs {', '.join(missing)}" if missing else None


def tool(name: str) -> str | None:
    """A program beside this Python, else on PATH."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    return shutil.which(name, path=path)


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

    One architecture is enough to link; the kernels' own tests compile for all of them.

    Raises:
        AssertionError: CMake or a compiler failed; the message is what it said.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    key = hashlib.sha256(f"{PLUGINS} {headers} {find_nvcc()}".encode()).hexdigest()[:12]
    name = f"{version(headers)}-{key}"
    folder = pathlib.Path(caches) / "rmsnorm_export" / "adapter-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = (
            f"-DTENSORRT_INCLUDE_DIR={headers}", "-DRMSNORM_TESTS=ON",
            "-DCMAKE_CUDA_ARCHITECTURES=90-real", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
        )  # fmt: skip
        for process in (
            lambda: configure(folder, *options),
            lambda: cmake("--build", folder, "--parallel", min(2, os.cpu_count() or 1)),
        ):
            done = process()
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return folder

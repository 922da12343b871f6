"""A plugin project, a compiler and headers that stand in for the real ones.

CMake, the host compiler, the cache and the loader are the real ones. The project makes two
libraries of the right names from a line of C++ each; nvcc is a script that knows its version;
TensorRT's headers are a version number. So a build takes a second, and needs nothing that CI lacks.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.tensorrt.plugin.building import find_source
from rmsnorm_export.tensorrt.plugin.toolchain import find_cmake

TENSORRT = os.environ.get("TENSORRT_INCLUDE_DIR") or os.environ.get("TENSORRT_ROOT")
"""TensorRT's headers, of which CI has none."""

needs_headers = pytest.mark.skipif(
    not TENSORRT, reason="no TensorRT headers: set TENSORRT_INCLUDE_DIR to enable"
)
needs_build = pytest.mark.skipif(
    shutil.which("g++") is None or find_cmake().status != "ok",
    reason="no g++ or CMake: apt install g++, pip install cmake ninja to enable",
)

_CMAKE = """\
cmake_minimum_required(VERSION 3.24)
set(CMAKE_CXX_COMPILER_FORCED TRUE)  # not tried out: half the time of a build
project(standin LANGUAGES CXX)
file(APPEND "${CMAKE_CURRENT_SOURCE_DIR}/builds.log" "built\\n")
add_library(rmsnorm_plugin SHARED plugin.cpp)
add_library(rmsnorm_plugin_autoload SHARED autoload.cpp)
if(RMSNORM_ONNXRUNTIME)
  add_library(rmsnorm_onnxruntime_cuda SHARED nodes.cpp)
endif()
"""

PLUGIN = 'extern "C" void* getCreators(int& n) { n = 0; return 0; }\n'
PLUGIN += 'extern "C" void setLoggerFinder(void*) {}\n'
AUTOLOAD = 'extern "C" const char* name() { return "getPluginRegistry"; }\n'

NODES = 'extern "C" const char* RegisterCustomOps() { return "CUDAExecutionProvider"; }\n'

_NVCC = """\
#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88";;
  --list-gpu-arch) printf 'compute_80\\ncompute_90\\ncompute_100\\n';;
esac
"""

_VERSION = """\
#define TRT_MAJOR_ENTERPRISE {}
#define NV_TENSORRT_MAJOR TRT_MAJOR_ENTERPRISE //!< TensorRT major version.
#define NV_TENSORRT_MINOR {} //!< TensorRT minor version.
#define NV_TENSORRT_PATCH {} //!< TensorRT patch version.
"""


@dataclasses.dataclass(frozen=True)
class Standin:
    """The folders of a stand-in."""

    source: Path
    nvcc: Path
    headers: Path
    cache: Path

    @property
    def arguments(self) -> dict[str, object]:
        """What ``plugin.build`` takes, for sm_90."""
        return {
            "arch": "90",
            "source": self.source,
            "cuda": self.nvcc,
            "tensorrt_include": self.headers,
            "cache": self.cache,
        }

    def builds(self) -> int:
        """How often the project was configured."""
        log = self.source / "builds.log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def make_standin(folder: Path) -> Standin:
    """A stand-in in ``folder``."""
    found = Standin(folder / "source", folder / "nvcc", folder / "headers", folder / "cache")
    found.source.mkdir(parents=True)
    (found.source / "CMakeLists.txt").write_text(_CMAKE)
    (found.source / "plugin.cpp").write_text(PLUGIN)
    (found.source / "autoload.cpp").write_text(AUTOLOAD)
    (found.source / "nodes.cpp").write_text(NODES)
    found.nvcc.write_text(_NVCC)
    found.nvcc.chmod(0o755)
    write_headers(found.headers)
    return found


def write_headers(folder: Path, version: tuple[int, int, int] = (11, 1, 0)) -> None:
    """Headers of a TensorRT version."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "NvInferRuntime.h").write_text("")
    (folder / "NvInferVersion.h").write_text(_VERSION.format(*version))


def compile_library(path: Path, source: str, *flags: str) -> Path:
    """A shared library of one C++ source."""
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


BUGS = (
    "none",
    "refuse all",
    "lose field",
    "no clone",
    "one more output",
    "crash",
    "no timing id",
    "other namespace",
    "other fields",
    "attached differs",
    "hang",
    "abort",
    "exit",
    "no creator",
    "other kind",
)
"""Faults of fake_plugin.cpp, in the order of its enumeration."""


def fake_plugin(folder: Path, bug: str = "none", *, self_test: bool = True) -> Path:
    """A library of the style ``load_library`` with a creator of RMSNorm that has one fault."""
    without = _without_fault(self_test)
    fault = f"RMSNORM_BUG={BUGS.index(bug):02d}".encode()
    library = folder / "librmsnorm_plugin.so"
    library.write_bytes(without.replace(b"RMSNORM_BUG=00", fault))
    assert fault in library.read_bytes()
    library.chmod(0o755)
    return library


@functools.cache
def _without_fault(self_test: bool) -> bytes:
    """Compiled once in a process: half a second."""
    names = ",".join(f'"{name}"' for name in NormSpec().attributes())
    flags = ["-DOUTPUTS=1", '-DNAME="RMSNorm"', f"-DNAMES={names}"]
    here = Path(__file__).parent
    source = (here / "fake_plugin.cpp").read_text()
    if self_test:
        source += (find_source() / "tensorrt" / "self_test.cpp").read_text()
    flags += ["-isystem", str(here / "headers"), "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    with tempfile.TemporaryDirectory() as folder:
        return compile_library(Path(folder) / "l.so", source, *flags).read_bytes()

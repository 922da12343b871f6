"""Finding what a build needs: nvcc, a host compiler, CMake, Ninja."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.system.packages import package_folders
from rmsnorm_export.system.process import run_program
from rmsnorm_export.tensorrt.plugin.arch import VERSION_TIMEOUT
from rmsnorm_export.tensorrt.plugin.result import Tool

EXTRA = 'pip install "rmsnorm-export[plugin]"'
"""Brings nvcc, CMake and Ninja from PyPI."""

_NVCC_FIX = f"{EXTRA}, or install the CUDA toolkit and set CUDA_HOME"
_CMAKE_FIX = "pip install cmake"
_NINJA_FIX = "pip install ninja"
_COMPILER_FIX = "apt install g++ (or set CXX to a C++17 compiler that nvcc supports)"

CMAKE_MINIMUM = (3, 24)
"""As in plugins/CMakeLists.txt."""


def find_nvcc(cuda: str | os.PathLike[str] | None = None) -> Tool:
    """The CUDA compiler.

    Args:
        cuda: nvcc itself or the folder of a toolkit; only this is tried. None: ``CUDA_HOME``, which
            is not passed over either, then ``PATH``, the PyPI packages, ``/usr/local/cuda``.
    """
    home = os.environ.get("CUDA_HOME")
    if cuda is not None or home:
        place = Path(cuda if cuda is not None else str(home)).expanduser().absolute()
        origin = "as given" if cuda is not None else "from CUDA_HOME"
        path = place if place.is_file() else place / "bin" / "nvcc"
        if not path.is_file():
            detail = f"no bin/nvcc in {place} ({origin})"
            return Tool("nvcc", "missing", "", "", detail, _NVCC_FIX)
        return _asked("nvcc", path, r"release [\d.]+, V([\d.]+)", _NVCC_FIX)
    for path in _nvcc_places():
        return _asked("nvcc", path, r"release [\d.]+, V([\d.]+)", _NVCC_FIX)
    detail = "not in CUDA_HOME, PATH, the nvidia packages of this Python, or /usr/local/cuda"
    return Tool("nvcc", "missing", "", "", detail, _NVCC_FIX)


def _nvcc_places() -> Iterator[Path]:
    if found := shutil.which("nvcc"):
        yield Path(found)
    for folder in package_folders("nvidia"):
        yield from sorted(folder.glob("*/bin/nvcc"), reverse=True)
    if (usual := Path("/usr/local/cuda/bin/nvcc")).is_file():
        yield usual


def find_host_compiler() -> Tool:
    """The C++ compiler: ``CUDAHOSTCXX`` or ``CXX``, else g++, c++ or clang++ in ``PATH``."""
    for variable in ("CUDAHOSTCXX", "CXX"):
        if asked := os.environ.get(variable):
            found = shutil.which(asked)
            if found is None:
                detail = f"{variable}={asked} is not a program"
                return Tool("host compiler", "missing", "", "", detail, _COMPILER_FIX)
            return _compiler(Path(found))
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return _compiler(Path(found))
    detail = "no g++, c++ or clang++ in PATH"
    return Tool("host compiler", "missing", "", "", detail, _COMPILER_FIX)


def _compiler(path: Path) -> Tool:
    tool = _asked("host compiler", path, r"\A(.+)", _COMPILER_FIX)
    return tool if tool.status != "ok" or path.name in tool.version else _named(tool, path.name)


def _named(tool: Tool, name: str) -> Tool:
    return Tool(tool.name, "ok", tool.path, f"{name}: {tool.version}", tool.detail, tool.install)


def find_cmake() -> Tool:
    """CMake in ``PATH``, else that of the PyPI package; the first that is new enough."""
    places = [Path(found)] if (found := shutil.which("cmake")) else []
    places += [folder / "data" / "bin" / "cmake" for folder in package_folders("cmake")]
    needed = ".".join(map(str, CMAKE_MINIMUM))
    last = Tool("cmake", "missing", "", "", "not in PATH, no PyPI package", _CMAKE_FIX)
    for path in places:
        if not path.is_file():
            continue
        tool = _asked("cmake", path, r"cmake version ([\d.]+)", _CMAKE_FIX)
        if tool.status == "ok" and _numbers(tool.version)[:2] >= CMAKE_MINIMUM:
            return tool
        detail = tool.detail or f"version {needed} or newer is needed"
        last = Tool("cmake", "broken", tool.path, tool.version, detail, _CMAKE_FIX)
    return last


def find_ninja() -> Tool:
    """Ninja in ``PATH``, else that of the PyPI package, else make."""
    script = Path(sysconfig.get_path("scripts")) / "ninja"
    places = [shutil.which("ninja"), str(script) if script.is_file() else None]
    for place in filter(None, places):
        return _asked("ninja", Path(place), r"\A([\d.]+)", _NINJA_FIX)
    if make := shutil.which("make"):
        return _asked("make", Path(make), r"Make ([\d.]+)", _NINJA_FIX)
    return Tool("ninja", "missing", "", "", "neither ninja nor make in PATH", _NINJA_FIX)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _asked(name: str, path: Path, pattern: str, install: str) -> Tool:
    """The tool at ``path``, with the version that it prints."""
    try:
        done = run_program([str(path), "--version"], VERSION_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        return Tool(name, "broken", str(path), "", f"cannot be run: {error}", install)
    match = re.search(pattern, done.stdout)
    if done.returncode or match is None:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        detail = f"--version ended with {done.returncode} and printed: {said[-1]}"
        return Tool(name, "broken", str(path), "", detail, install)
    return Tool(name, "ok", str(path), match[1].strip(), "", install)

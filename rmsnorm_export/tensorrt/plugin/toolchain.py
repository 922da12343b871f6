"""What a build needs: nvcc, a host compiler, CMake, Ninja and TensorRT's headers, found and
complete, or one error that names all that is missing.

The headers are in no PyPI package, and this one does not copy them.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import package_folders, pip_install
from rmsnorm_export.system.process import run_program
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.plugin.arch import VERSION_TIMEOUT
from rmsnorm_export.tensorrt.plugin.result import PluginRuntime, Tool, ToolStatus

EXTRA = pip_install("[plugin]")
"""Brings nvcc, CMake and Ninja from PyPI."""

_FIXES = {
    "nvcc": f"{EXTRA}, or install the CUDA toolkit and set CUDA_HOME",
    "host compiler": "apt install g++ (or set CXX to a C++17 compiler that nvcc supports)",
    "cmake": "pip install cmake",
    "ninja": "pip install ninja",
    "make": "pip install ninja",
    "TensorRT headers": "apt install libnvinfer-headers-dev, or unpack TensorRT's tar package, or"
    " git clone --depth 1 --branch v<the version that you run>"
    " https://github.com/NVIDIA/TensorRT; then set TENSORRT_INCLUDE_DIR to the include folder (or"
    " give --tensorrt DIR)",
}
"""What brings each tool."""

_VERSIONS = {
    "nvcc": r"release [\d.]+, V([\d.]+)",
    "host compiler": r"\A(.+)",
    "cmake": r"cmake version ([\d.]+)",
    "ninja": r"\A([\d.]+)",
    "make": r"Make ([\d.]+)",
}
"""How each tells its version."""

CMAKE_MINIMUM = (3, 24)
"""As in plugins/CMakeLists.txt."""

TENSORRT_MINIMUM = (10, 8)
"""First TensorRT whose interface the adapter is written for."""

_SYSTEM_INCLUDES = (
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
    "/usr/include",
    "/usr/local/include",
    "/usr/local/tensorrt/include",
    "/opt/tensorrt/include",
    "/usr/local/TensorRT*/include",
    "/opt/TensorRT*/include",
)
"""Where the deb and rpm packages, containers and people put TensorRT's headers."""

_ARCHITECTURE_INCLUDES = ("include/x86_64-linux-gnu", "include/aarch64-linux-gnu")
_HEADERS = ("NvInferRuntime.h", "NvInferVersion.h")


@dataclasses.dataclass(frozen=True, slots=True)
class Toolchain:
    """What a build uses; every tool in it is ok."""

    nvcc: Tool
    compiler: Tool
    cmake: Tool
    generator: Tool
    headers: Tool


def build_tools(
    cuda: StrPath | None = None, tensorrt_include: StrPath | None = None
) -> tuple[Tool, ...]:
    """Every tool that a build needs, found or not, without an error for those that are not.

    Args:
        cuda, tensorrt_include: as for ``build``.
    """
    return (
        find_nvcc(cuda),
        find_host_compiler(),
        find_cmake(),
        find_ninja(),
        find_headers(tensorrt_include),
    )


def find_toolchain(
    cuda: StrPath | None = None, tensorrt_include: StrPath | None = None
) -> Toolchain:
    """The tools of a build.

    Raises:
        BackendMissingError: some are missing, or found and of no use; it names each, with what
            brings it.
    """
    return Toolchain(*_complete(build_tools(cuda, tensorrt_include)))


def find_other_toolchain(runtime: PluginRuntime, cuda: StrPath | None = None) -> Toolchain:
    """That of a library for ONNX Runtime, whose CPU kernels need no CUDA, or for PyTorch; what is
    not needed, such as headers, is blank.

    Raises:
        BackendMissingError: as ``find_toolchain``.
    """
    blank = Tool("", "ok", "", "", "", "")
    nvcc = blank if runtime == "onnxruntime" else find_nvcc(cuda)
    tools = (nvcc, find_host_compiler(), find_cmake(), find_ninja())
    nvcc, compiler, cmake, generator = _complete(tools)
    return Toolchain(nvcc, compiler, cmake, generator, blank)


def _complete(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    bad = [tool for tool in tools if tool.status != "ok"]
    if bad:
        raise BackendMissingError(
            f"The plugin cannot be built without {_enumerated([tool.name for tool in bad])}.",
            found="; ".join(f"{tool.name}: {_tool_state(tool)}" for tool in bad),
            fix="; ".join(dict.fromkeys(f"{tool.name}: {tool.install}" for tool in bad)),
        )
    return tools


def _tool_state(tool: Tool) -> str:
    if tool.status == "missing":
        return tool.detail
    return " ".join(filter(None, (tool.path, tool.version))) + f": {tool.detail}"


def _enumerated(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def find_nvcc(cuda: StrPath | None = None) -> Tool:
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
            return _missing("nvcc", f"no bin/nvcc in {place} ({origin})")
        return _asked("nvcc", path)
    for path in _nvcc_places():
        return _asked("nvcc", path)
    return _missing(
        "nvcc", "not in CUDA_HOME, PATH, the nvidia packages of this Python, or /usr/local/cuda"
    )


def _nvcc_places() -> Iterator[Path]:
    if path := shutil.which("nvcc"):
        yield Path(path)
    for folder in package_folders("nvidia"):
        yield from sorted(folder.glob("*/bin/nvcc"), reverse=True)
    if (usual := Path("/usr/local/cuda/bin/nvcc")).is_file():
        yield usual


def find_host_compiler() -> Tool:
    """The C++ compiler: ``CUDAHOSTCXX`` or ``CXX``, else g++, c++ or clang++ in ``PATH``."""
    for variable in ("CUDAHOSTCXX", "CXX"):
        if asked := os.environ.get(variable):
            if path := shutil.which(asked):
                return _compiler(Path(path))
            return _missing("host compiler", f"{variable}={asked} is not a program")
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return _compiler(Path(path))
    return _missing("host compiler", "no g++, c++ or clang++ in PATH")


def _compiler(path: Path) -> Tool:
    tool = _asked("host compiler", path)
    if tool.status != "ok" or path.name in tool.version:
        return tool
    return dataclasses.replace(tool, version=f"{path.name}: {tool.version}")


def find_cmake() -> Tool:
    """CMake in ``PATH``, else that of the PyPI package; the first that is new enough."""
    places = [Path(found)] if (found := shutil.which("cmake")) else []
    places += [folder / "data" / "bin" / "cmake" for folder in package_folders("cmake")]
    needed = ".".join(map(str, CMAKE_MINIMUM))
    last = _missing("cmake", "not in PATH, no PyPI package")
    for path in filter(Path.is_file, places):
        tool = _asked("cmake", path)
        if tool.status == "ok" and _version_numbers(tool.version) >= CMAKE_MINIMUM:
            return tool
        detail = tool.detail or f"version {needed} or newer is needed"
        last = dataclasses.replace(tool, status="broken", detail=detail)
    return last


def find_ninja() -> Tool:
    """Ninja in ``PATH``, else that of the PyPI package, else make."""
    script = Path(sysconfig.get_path("scripts")) / "ninja"
    places = [shutil.which("ninja"), str(script) if script.is_file() else None]
    for place in filter(None, places):
        return _asked("ninja", Path(place))
    if make := shutil.which("make"):
        return _asked("make", Path(make))
    return _missing("ninja", "neither ninja nor make in PATH")


def _version_numbers(version: str) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _missing(name: str, detail: str) -> Tool:
    return Tool(name, "missing", "", "", detail, _FIXES[name])


def _asked(name: str, path: Path) -> Tool:
    """The tool at ``path``, with the version that it prints."""
    try:
        done = run_program([str(path), "--version"], VERSION_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        return Tool(name, "broken", str(path), "", f"cannot be run: {error}", _FIXES[name])
    match = re.search(_VERSIONS[name], done.stdout)
    if done.returncode or match is None:
        printed = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        detail = f"--version ended with {done.returncode} and printed: {printed[-1]}"
        return Tool(name, "broken", str(path), "", detail, _FIXES[name])
    return Tool(name, "ok", str(path), match[1].strip(), "", _FIXES[name])


def find_headers(tensorrt: StrPath | None = None) -> Tool:
    """The folder with ``NvInferRuntime.h``.

    Args:
        tensorrt: that folder or one above it; only this is tried. None: ``TENSORRT_INCLUDE_DIR``
            or ``TENSORRT_ROOT``, which are not passed over either, then the system's folders.
    """
    asked = [("as given", tensorrt)]
    asked += [(f"from {v}", os.environ.get(v)) for v in ("TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT")]
    for origin, place in asked:
        if place:
            root = Path(place).expanduser().absolute()
            for part in ("", "include", *_ARCHITECTURE_INCLUDES):
                if (root / part / _HEADERS[0]).is_file():
                    return _headers_in(root / part)
            detail = f"no NvInferRuntime.h in {root} or {root / 'include'} ({origin})"
            return _missing("TensorRT headers", detail)
    for pattern in _SYSTEM_INCLUDES:
        for found in sorted(glob.glob(pattern), reverse=True):
            if (Path(found) / _HEADERS[0]).is_file():
                return _headers_in(Path(found))
    detail = "neither TENSORRT_INCLUDE_DIR nor TENSORRT_ROOT is set, none in the system's folders"
    return _missing("TensorRT headers", detail)


def _headers_in(folder: Path) -> Tool:
    missing = [name for name in _HEADERS if not (folder / name).is_file()]
    version = "" if missing else _header_version(folder / "NvInferVersion.h")
    problem = ""
    if missing:
        problem = f"{', '.join(missing)} is not there"
    elif not version:
        problem = "NvInferVersion.h does not say a version"
    elif _version_numbers(version) < TENSORRT_MINIMUM:
        problem = f"TensorRT {TENSORRT_MINIMUM[0]}.{TENSORRT_MINIMUM[1]} or newer is needed"
    status: ToolStatus = "broken" if problem else "ok"
    fix = _FIXES["TensorRT headers"]
    return Tool("TensorRT headers", status, str(folder), version, problem, fix)


def _header_version(path: Path) -> str:
    """``major.minor.patch`` of ``NvInferVersion.h``; "" when it does not say."""
    text = read_file(path).decode("utf-8", "replace")
    matches = re.finditer(r"^#define[ \t]+(\w+)[ \t]+(\w+)", text, re.MULTILINE)
    defined = {match[1]: match[2] for match in matches}
    parts = []
    for name in ("MAJOR", "MINOR", "PATCH"):
        value = defined.get(f"NV_TENSORRT_{name}", "")
        value = defined.get(value, value)  # since 10.10: NV_TENSORRT_MAJOR is TRT_MAJOR_ENTERPRISE
        if not value.isdigit():
            return ""
        parts.append(value)
    return ".".join(parts)

"""``build``: the libraries of a runtime, by CMake from the packaged sources.

CMake finds the compilers, the CUDA toolkit and TensorRT's headers, compiles what is new, and
installs the libraries; its build tree is next to them, in the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.options import Progress
from rmsnorm_export.system.files import StrPath, refusals_as
from rmsnorm_export.system.libraries import check_owners
from rmsnorm_export.system.machine import cores, gpus
from rmsnorm_export.system.packages import package_folders, pip_install
from rmsnorm_export.system.reading import read_file
from rmsnorm_export.tensorrt.plugin import libraries
from rmsnorm_export.tensorrt.plugin.libraries import (
    LIBRARIES,
    BuildError,
    Built,
    PluginRuntime,
    with_cuda,
)

_ARCHITECTURES = re.compile(r"\d{2,3}[af]?(,\d{2,3}[af]?)*")
_WRONG = re.compile(r"\berror\b|^CMake Error|undefined reference", re.IGNORECASE)
_NO_HEADERS = "TensorRT's headers were not found"
_HEADERS = (
    "give --tensorrt DIR, the folder include of github.com/NVIDIA/TensorRT at the tag of your"
    " version, or of its deb or tar package"
)
_SHOWN = 6
"""Lines of a log in the message of an error."""


def build(
    *,
    runtime: PluginRuntime = "tensorrt",
    arch: str | None = None,
    tensorrt_include: StrPath | None = None,
    cuda: StrPath | bool | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Built:
    """Compile the plugin or the kernels of another runtime, unless they are compiled already.

    The CPU kernels for ONNX Runtime that a wheel brings are taken as they are.

    Args:
        runtime: ``"onnxruntime"`` builds the CPU kernels, which need neither CUDA nor TensorRT, and
            with ``cuda`` the CUDA kernels besides.
        arch: ``"90"`` or ``"90,100"``; ``"all"``: every architecture that the kernels are tuned
            for. None: that of the GPU at hand, or without one all.
        tensorrt_include: folder of TensorRT's headers, or above it; by default that of
            ``TENSORRT_INCLUDE_DIR``, ``TENSORRT_ROOT`` or the system.
        cuda: folder of a CUDA toolkit; by default, and with True, that of ``CUDA_HOME``, ``PATH``,
            the PyPI packages or the system.
        force: compile everything again.
        progress: called before the compiler runs, with its work and the time that takes.

    Raises:
        BackendMissingError: CMake is missing, or it misses something else and says what; or others
            can write to the cache.
        UsageError: ``runtime`` or ``arch`` cannot be used.
        InputError: the cache cannot be written, or the disk is full.
        BuildError: the compiler failed; it has the log.
    """
    from filelock import FileLock  # it takes longer to import than doctor needs

    start = time.monotonic()
    chosen = with_cuda(runtime, cuda)
    if chosen not in LIBRARIES or (tensorrt_include and chosen != "tensorrt"):
        fix = f"use one of {', '.join(LIBRARIES)}; only tensorrt takes TensorRT's headers"
        raise UsageError("There is no such build.", found=f"runtime {runtime!r}", fix=fix)
    place = libraries.build_folder()
    built = None if force else libraries.packaged_build(chosen)
    if built is None:
        architectures = _architectures(arch)
        toolkit = None if isinstance(cuda, bool) else cuda
        settings = _cmake_settings(chosen, architectures, tensorrt_include, toolkit)
        fix = "free some space, or give a writable folder with XDG_CACHE_HOME"
        with refusals_as("The build cannot be written.", place, fix=fix):
            place.mkdir(parents=True, exist_ok=True)
            check_owners(place)  # a build tree holds programs, which CMake runs
            with FileLock(place / ".lock"):
                tree = _configure(chosen, place, [*settings, *["--fresh"] * force])
                if progress is not None:
                    progress(_announcement(chosen, architectures), 0, 1)
                _compile(chosen, place, tree, force=force)
                built = libraries.read_build(place / "lib", chosen)
    return replace(built, seconds=round(time.monotonic() - start, 3))


def _architectures(arch: str | None) -> str:
    """Return the CUDA architectures to build for, those of the GPUs by default; "": all."""
    if arch is None:
        named = {gpu.capability for gpu in gpus() if re.fullmatch(r"\d+\.\d", gpu.capability)}
        return ",".join(name.replace(".", "") for name in sorted(named, key=float))
    return "" if arch == "all" else arch


def _announcement(runtime: PluginRuntime, architectures: str) -> str:
    """Return the work of a build, and how long it takes."""
    if runtime == "onnxruntime":
        return "compiling onnxruntime for this kind of processor: about a minute of one core"
    every = "all CUDA architectures (--arch 90 builds for that one alone)"
    target = f"CUDA architectures {architectures}" if architectures else every
    return f"compiling {runtime} for {target}: about two minutes of one core for each"


def missing_tools() -> dict[str, str]:
    """Return the programs that a build needs and that are not here, with what brings each."""
    extra = pip_install("[plugin]")
    tools = {
        "nvcc": (_which("nvcc") or next(_wheel_toolkits(), ""), f"{extra}, or CUDA 12"),
        "host compiler": (_which(os.environ.get("CXX", "c++")), "apt install g++"),
        "cmake": (_which("cmake"), extra),
    }
    return {name: install for name, (path, install) in tools.items() if not path}


def _cmake_settings(
    runtime: PluginRuntime, arch: str, headers: StrPath | None, cuda: StrPath | None
) -> list[str]:
    """Return the arguments of CMake that are not the same for every build."""
    if runtime == "onnxruntime":
        return []
    settings = [
        f"-DRMSNORM_ONNXRUNTIME={'ON' if runtime == 'onnxruntime-cuda' else 'OFF'}",
        f"-DRMSNORM_TENSORRT={'ON' if runtime == 'tensorrt' else 'OFF'}",
    ]
    toolkit = cuda or ("" if _cmake_finds_cuda() else next(_wheel_toolkits(), ""))
    if toolkit:
        # Objects that the same compiler made stay.
        settings += ["--fresh", f"-DCUDAToolkit_ROOT={os.path.abspath(toolkit)}"]
    settings.append("-UTENSORRT_*")
    if headers:
        own = os.path.exists(os.path.join(headers, "NvInferRuntime.h"))
        name = "TENSORRT_INCLUDE_DIR" if own else "TENSORRT_ROOT"
        settings.append(f"-D{name}={os.path.abspath(headers)}")
    if not arch:
        return [*settings, "-UCMAKE_CUDA_ARCHITECTURES"]
    if not _ARCHITECTURES.fullmatch(arch):
        what, fix = "An architecture cannot be understood.", "write it as 90, as 90,100 or as all"
        raise UsageError(what, found=repr(arch), fix=fix)
    return [*settings, f"-DCMAKE_CUDA_ARCHITECTURES={arch.replace(',', ';')}"]


def _cmake_finds_cuda() -> bool:
    named = any(os.environ.get(name) for name in ("CUDA_HOME", "CUDACXX", "CUDAToolkit_ROOT"))
    return named or bool(shutil.which("nvcc")) or os.path.exists("/usr/local/cuda/bin/nvcc")


def _wheel_toolkits() -> Iterator[Path]:
    """Yield the toolkits of the PyPI packages, newest first."""
    for folder in package_folders("nvidia"):
        yield from (nvcc.parents[1] for nvcc in sorted(folder.glob("*/bin/nvcc"), reverse=True))


def _search_path() -> str:
    """Return ``PATH`` with the programs of this Python's packages, activated or not."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def _which(program: str) -> str:
    return shutil.which(program, path=_search_path()) or ""


def _configure(runtime: PluginRuntime, place: Path, settings: list[str]) -> str:
    """Set the build up, for which CMake looks for all that it needs; return its tree."""
    cmake, log = _which("cmake"), place / f"{runtime}.log"
    if not cmake:
        what = "The plugin cannot be built without CMake."
        raise BackendMissingError(what, found="no cmake in PATH", fix=pip_install("[plugin]"))
    part = "onnxruntime" if runtime == "onnxruntime" else ""  # a project that needs no CUDA
    tree = str(place / (part or "cuda"))
    source = str(libraries.SOURCES.resolve() / part)
    generator = ["-G", "Ninja"] if _which("ninja") else []
    settings = ["-DCMAKE_BUILD_TYPE=Release", *generator, *settings]
    log.write_bytes(b"")
    if not _logged([cmake, "-S", source, "-B", tree, *settings], log):
        found = _first_error(log)
        missing = missing_tools()
        if runtime == "onnxruntime":
            missing.pop("nvcc", None)
        fixes = [f"{tool}: {brings}" for tool, brings in missing.items()]
        if _NO_HEADERS in found:
            fixes.append(f"TensorRT's headers: {_HEADERS}")
        fix = "; ".join(fixes) or f"read the log, {log}"
        raise BackendMissingError("CMake could not set the build up.", found=found, fix=fix)
    return tree


def _compile(runtime: PluginRuntime, place: Path, tree: str, *, force: bool) -> None:
    """Build and install into ``place``."""
    cmake, log = _which("cmake"), place / f"{runtime}.log"
    targets = [name[3:-3] for name in LIBRARIES[runtime].values()]
    make = [cmake, "--build", tree, "--parallel", str(cores()), "--target", *targets]
    install = [cmake, "--install", tree, "--prefix", str(place), "--component", runtime]
    if not _logged(make + ["--clean-first"] * force, log) or not _logged(install, log):
        what, fix = "The plugin did not compile.", f"read the log, {log}"
        raise BuildError(what, found=_first_error(log), fix=fix, log=log)


def _logged(command: Sequence[str], log: Path) -> bool:
    env = os.environ | {"PATH": _search_path(), "LC_ALL": "C", "CMAKE_INSTALL_ALWAYS": "1"}
    null = subprocess.DEVNULL
    with log.open("ab") as file:
        code = subprocess.call(command, stdin=null, stdout=file, stderr=subprocess.STDOUT, env=env)
    return code == 0


def _first_error(log: Path) -> str:
    lines = [line.strip() for line in read_file(log).decode("utf-8", "replace").splitlines()]
    first = next((n for n, line in enumerate(lines) if _WRONG.search(line)), -_SHOWN)
    text = " ".join(filter(None, lines[first:][:_SHOWN])) or "no message"
    return re.sub(r"^CMake Error at \S+ \(message\): ", "", text)

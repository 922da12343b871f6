"""Running CMake: configure, build, watch, and tell what went wrong."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.process import end_group
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.tensorrt.plugin.result import FILES, BuildError
from rmsnorm_export.tensorrt.plugin.toolchain import Toolchain

_BUILD_LOG = logging.getLogger("rmsnorm_export.tensorrt.plugin")

_STEP = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)")
_WRONG = re.compile(
    r"\b(error|fatal)\b[^:/]{0,12}:|^CMake Error|undefined reference", re.IGNORECASE
)
_FULL = "No space left on device"
_TAIL = 20
"""Lines of a log that are shown."""


def compile_plugin(
    source: Path,
    folder: Path,
    tools: Toolchain,
    architectures: Sequence[str],
    jobs: int,
    log: Path,
    progress: Progress,
) -> dict[str, Path]:
    """Build the two libraries of the CMake project ``source`` in ``folder``.

    Args:
        source: with a CMakeLists.txt.
        folder: for the build tree; it is empty.
        tools: what to build with.
        architectures: as CMake names them.
        jobs: compilers at the same time.
        log: file that all output goes to.
        progress: told of every step.

    Returns:
        The libraries, by file name.

    Raises:
        BuildError: CMake or a compiler failed, or a library is not there afterwards.
        InputError: the disk is full.
    """
    generator = "Ninja" if tools.generator.name == "ninja" else "Unix Makefiles"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": tools.generator.path,
        "CMAKE_CXX_COMPILER": tools.compiler.path,
        "CMAKE_CUDA_COMPILER": tools.nvcc.path,
        "CMAKE_CUDA_HOST_COMPILER": tools.compiler.path,
        "CMAKE_CUDA_ARCHITECTURES": ";".join(cmake_architectures(architectures)),
        "TENSORRT_INCLUDE_DIR": tools.headers.path,
    }
    configure = [tools.cmake.path, "-S", str(source), "-B", str(folder), "-G", generator]
    configure += ["--no-warn-unused-cli", *(f"-D{k}={v}" for k, v in settings.items())]
    make = [tools.cmake.path, "--build", str(folder), "--parallel", str(jobs), "--target"]
    make += [name.removeprefix("lib").removesuffix(".so") for name in FILES.values()]
    progress("configuring", 0, 1)
    _run_step(configure, log, progress, "CMake could not set the build up.")
    _run_step(make, log, progress, "The plugin did not compile.")
    products = {}
    for name in FILES.values():
        product = next(folder.rglob(name), None)
        if product is None:
            raise _compile_error(f"The build made no {name}.", log)
        products[name] = product
    return products


def cmake_architectures(architectures: Sequence[str]) -> list[str]:
    """Machine code for each architecture, and PTX, which newer GPUs can run, of the last."""
    return [f"{name}-real" for name in architectures[:-1]] + list(architectures[-1:])


def _run_step(command: list[str], log: Path, progress: Progress, what: str) -> None:
    """Run one step in a process group of its own, which ends with this call whatever happens."""
    _BUILD_LOG.info("%s", " ".join(command))
    with log.open("a", encoding="utf-8") as file:
        print("$", *command, file=file)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env=os.environ | {"LC_ALL": "C"},
        )
        try:
            assert process.stdout is not None
            _watch(process.stdout, file, progress)
            code = process.wait()
        except BaseException:
            end_group(process, signal.SIGTERM)
            raise
    if code:
        raise _compile_error(what, log)


def _watch(lines: IO[str], file: IO[str], progress: Progress) -> None:
    for line in lines:
        file.write(line)
        _BUILD_LOG.debug("%s", line.rstrip())
        if match := _STEP.match(line):
            done, total, what = match.groups()
            # "Building CUDA object kernels/CMakeFiles/x.dir/launch.cu.o" is about launch.cu
            name = Path(what.split()[-1]).name.removesuffix(".o") if what.split() else ""
            progress(f"building {name}", int(done), int(total or 100))


def _compile_error(what: str, log: Path) -> BuildError | InputError:
    """The error for what ``log`` ends with: the lines from the first error on."""
    lines = [line.rstrip() for line in log.read_text("utf-8", "replace").splitlines()]
    if any(_FULL in line for line in lines):
        return InputError(
            "The disk is full.",
            found=next(line for line in lines if _FULL in line),
            fix="free some space, or set TMPDIR to a folder with more (see --cache DIR, too)",
        )
    output = [number for number, line in enumerate(lines) if not line.startswith("$ ")]
    first = next((n for n in output if _WRONG.search(lines[n])), max(len(lines) - _TAIL, 0))
    tail = tuple(line for line in lines[first : first + _TAIL] if line)
    reason = next((line for line in tail if _WRONG.search(line)), tail[-1] if tail else "")
    if reason.startswith("CMake Error"):
        reason = " ".join(line.strip() for line in tail[:4])
    return BuildError(
        what,
        found=reason or "no message",
        fix=f"read the log, {log}; another compiler can be given with CXX or --cuda",
        log=log,
        tail=tail,
    )

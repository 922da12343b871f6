"""``build``: the plugin's libraries, compiled once from the CMake project, kept, and copied."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.system.digest import sha256_of, sha256_of_all
from rmsnorm_export.system.files import StrPath, Transaction
from rmsnorm_export.system.machine import cores
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.system.process import end_group
from rmsnorm_export.system.progress import Progress, ProgressChoice, shows_progress
from rmsnorm_export.tensorrt.plugin import cache as store
from rmsnorm_export.tensorrt.plugin.arch import Arch, choose_architectures, parse
from rmsnorm_export.tensorrt.plugin.result import (
    BUILD_FILES,
    BuildError,
    Built,
    PluginRuntime,
    with_cuda,
)
from rmsnorm_export.tensorrt.plugin.toolchain import Toolchain, find_other_toolchain, find_toolchain

_BUILD_LOG = logging.getLogger("rmsnorm_export.tensorrt.plugin")

_FLAGS = ("CXXFLAGS", "CUDAFLAGS", "LDFLAGS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables that CMake and nvcc take options from."""

_PACKAGED = Path(__file__).parent / "_sources"
"""In a checkout a link to the folder plugins/."""

_SUFFIXES = {".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".cmake", ".txt", ".map", ".in"}
_APART = {"tests", "bench", "build"}
"""Folders that go into no library."""

_STEP = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)")
_WRONG = re.compile(
    r"\b(error|fatal)\b[^:/]{0,12}:|^CMake Error|undefined reference", re.IGNORECASE
)
_FULL = "No space left on device"
_TAIL = 20
"""Lines of a log that are shown."""


@shows_progress
def build(
    *,
    runtime: PluginRuntime = "tensorrt",
    arch: Arch = None,
    tensorrt_include: StrPath | None = None,
    cuda: StrPath | bool | None = None,
    cache: StrPath | None = None,
    output: StrPath | None = None,
    force: bool = False,
    jobs: int | None = None,
    source: StrPath | None = None,
    progress: ProgressChoice = None,
) -> Built:
    """Compile the plugin, or the kernels of another runtime, or return the build of before.

    A build is kept under a key made of its sources, compilers, flags, TensorRT version and
    architectures. One that was damaged is made again. Several calls at the same time share one
    compilation.

    Args:
        runtime: ``"onnxruntime"`` builds the CPU kernels, which need neither CUDA nor TensorRT, and
            with ``cuda`` the CUDA kernels besides; ``"torch"`` the CUDA kernels for PyTorch, which
            need no TensorRT.
        arch: ``"90"``, ``"sm_90,sm_100"``, ``["9.0"]``, ``"native"`` or ``"all"``. None: of the
            GPUs at hand, or without one every architecture that the kernels are tuned for.
        tensorrt_include: folder of TensorRT's headers, or the one above it; by default that of
            ``TENSORRT_INCLUDE_DIR``, ``TENSORRT_ROOT`` or the system.
        cuda: folder of a CUDA toolkit, or nvcc; by default, and with True, that of ``CUDA_HOME``,
            ``PATH``, the PyPI packages or the system.
        cache: folder of the builds; by default ``rmsnorm_export/plugins`` in the user's cache.
        output: folder that gets copies of the libraries and the manifest.
        force: build even if there is a build; replace other files in ``output``.
        jobs: compilers at the same time; by default one per processor.
        source: the CMake project; by default that of this package.
        progress: called with the work at hand, the steps that are over and the steps in all; None:
            a bar in notebooks and terminals; False: nothing.

    Raises:
        BackendMissingError: nvcc, a host compiler, CMake or TensorRT's headers are missing; it says
            what brings each.
        UsageError: ``runtime``, ``arch`` or ``jobs`` cannot be used, or ``output`` holds other
            files.
        InputError: a folder cannot be written, or the disk is full.
        BuildError: CMake or a compiler failed; it has the log.
    """
    start = time.monotonic()
    parse(arch)
    if jobs is not None and jobs < 1:
        raise UsageError("A build needs at least one job.", found=f"jobs = {jobs}", fix="give 1")
    project = find_source(source)
    architectures: tuple[str, ...] = (platform.machine(),)
    notes: tuple[str, ...] = ()
    runtime = with_cuda(runtime, cuda)
    given = {"arch": arch, "headers": tensorrt_include}
    taken: dict[str, set[str]] = {"tensorrt": {*given}, "torch": {"arch"}, "onnxruntime": set()}
    taken["onnxruntime-cuda"] = taken["torch"]
    if runtime not in taken or any(given[name] for name in given.keys() - taken[runtime]):
        raise UsageError(
            "Only builds with CUDA take its architectures, only those for TensorRT its headers.",
            found=", ".join(f"{k} {v!r}" for k, v in {"runtime": runtime, **given}.items()),
            fix="leave out what is not for the runtime, which is one of tensorrt, torch and"
            " onnxruntime, the last with or without cuda",
        )
    toolkit = None if isinstance(cuda, bool) else cuda
    if runtime == "tensorrt":
        tools = find_toolchain(toolkit, tensorrt_include)
    else:
        tools = find_other_toolchain(runtime, toolkit)
    if runtime != "onnxruntime":
        architectures, notes = choose_architectures(arch, tools.nvcc.path)
    folder = store.cache_folder(cache)
    facts = {
        "source": source_hash(project, runtime),
        "nvcc": tools.nvcc.version,
        "compiler": tools.compiler.version,
        "tensorrt": tools.headers.version,
        "architectures": list(architectures),
        "machine": platform.machine(),
        "flags": {name: os.environ.get(name, "") for name in _FLAGS},
    }
    built = Built(
        key=store.key_of(facts, runtime, tools.headers.version, architectures),
        folder=folder,
        libraries=(),
        architectures=architectures,
        tensorrt=tools.headers.version,
        cuda=tools.nvcc.version,
        compiler=tools.compiler.version,
        created="",
        notes=notes,
    )
    if output is not None:
        check_output(output, built, force=force)
    entry = store.read_entry(folder / built.key)
    if entry.built is None or force:
        with store.building(folder, built.key):
            entry = store.read_entry(folder / built.key)  # another process may have made it
            if entry.built is None or force:
                if os.path.lexists(entry.folder) and entry.built is None:
                    notes = (*notes, f"the kept build was damaged ({entry.problem}); built again")
                made = _compiled(
                    replace(built, notes=notes), folder, project, tools, jobs, progress or None
                )
                entry = replace(entry, built=made, problem="")
    assert entry.built is not None
    result = entry.built if entry.built.notes else replace(entry.built, notes=notes)
    if output is not None:
        target = check_output(output, result, force=force)
        try:
            result = replace(result, copies=copy_to(target, result))
        except InputError as error:
            error.fix += f"; the libraries are built, and kept in {result.folder}"
            raise
    return replace(result, seconds=round(time.monotonic() - start, 3))


def _compiled(
    built: Built,
    folder: Path,
    project: Path,
    tools: Toolchain,
    jobs: int | None,
    progress: Progress | None,
) -> Built:
    """Compile in a temporary folder, and keep the result."""
    with store.writable(Path(tempfile.gettempdir())):
        work = Path(tempfile.mkdtemp(prefix="rmsnorm-plugin-"))
    log = work / store.LOG
    try:
        products = _compile_plugin(
            project,
            work / "build",
            tools,
            built,
            jobs or cores(),
            log,
            progress or (lambda *_: None),
        )
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return store.install(folder, replace(built, created=now), products, log)
    except BuildError as error:
        kept = folder / f"{built.key}.log"
        with contextlib.suppress(OSError):
            shutil.copyfile(log, kept)
            error.fix = error.fix.replace(str(log), str(kept))
            error.log = kept
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile_plugin(
    source: Path,
    folder: Path,
    tools: Toolchain,
    built: Built,
    jobs: int,
    log: Path,
    progress: Progress,
) -> dict[str, Path]:
    """Make the libraries that ``built`` is to have, in the empty ``folder``, by file name.

    Raises:
        BuildError: CMake or a compiler failed, or a library is not there afterwards.
        InputError: the disk is full.
    """
    generator = "Ninja" if tools.generator.name == "ninja" else "Unix Makefiles"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": tools.generator.path,
        "CMAKE_CXX_COMPILER": tools.compiler.path,
    }
    runtime = built.runtime
    if runtime == "onnxruntime":
        source = source / "onnxruntime"
    else:
        settings |= {
            "CMAKE_CUDA_COMPILER": tools.nvcc.path,
            "CMAKE_CUDA_HOST_COMPILER": tools.compiler.path,
            "CMAKE_CUDA_ARCHITECTURES": ";".join(cmake_architectures(built.architectures)),
            "RMSNORM_ONNXRUNTIME": "ON" if runtime == "onnxruntime-cuda" else "OFF",
        }
    if runtime == "tensorrt":
        settings["TENSORRT_INCLUDE_DIR"] = tools.headers.path
    names = tuple(BUILD_FILES[runtime].values())
    configure = [tools.cmake.path, "-S", str(source), "-B", str(folder), "-G", generator]
    configure += ["--no-warn-unused-cli", *(f"-D{k}={v}" for k, v in settings.items())]
    make = [tools.cmake.path, "--build", str(folder), "--parallel", str(jobs), "--target"]
    make += [name.removeprefix("lib").removesuffix(".so") for name in names]
    progress("configuring", 0, 1)
    _run_step(configure, log, progress, "CMake could not set the build up.")
    _run_step(make, log, progress, "The plugin did not compile.")
    products = {}
    for name in names:
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


def find_source(source: StrPath | None = None) -> Path:
    """The folder with the project's ``CMakeLists.txt``.

    Raises:
        InputError: there is none.
    """
    place = (_PACKAGED if source is None else Path(source).expanduser()).resolve()
    if (place / "CMakeLists.txt").is_file():
        return place
    raise InputError(
        "The sources of the plugin are not there.",
        found=f"no CMakeLists.txt in {place}",
        fix=pip_install("rmsnorm-export")
        if source is None
        else "give the folder plugins/ of the repository",
    )


def source_hash(folder: Path, runtime: PluginRuntime = "tensorrt") -> str:
    """SHA-256 over names and contents of the files that go into the libraries."""
    paths = []
    apart = _APART | {"onnxruntime", "torch", "tensorrt"} - {runtime.removesuffix("-cuda")}
    if runtime == "onnxruntime":
        folder, apart = folder / "onnxruntime", _APART | {"cuda"}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.suffix in _SUFFIXES and not hidden and not apart & set(parts) and path.is_file():
            paths.append(path)
    return sha256_of_all(paths, folder)


def check_output(output: StrPath, built: Built, *, force: bool) -> Path:
    """The folder that the copies go to; before the libraries are built only it is looked at.

    Raises:
        UsageError: a file in it has the name of a copy, other contents, and ``force`` is False.
        InputError: it is no folder.
    """
    if not os.fspath(output) or os.fspath(output) == "-":
        raise UsageError("The output is no folder.", found=repr(output), fix="give a folder's path")
    target = Path(output).expanduser().absolute()
    if os.path.lexists(target) and not target.is_dir():
        raise InputError(
            "The output is no folder.",
            found=str(target),
            fix="give a folder; it is made if it does not exist",
        )
    for source, copy in _copies(built, target):
        if os.path.lexists(copy) and not force and not _same_file(source, copy):
            raise UsageError(
                "The output would replace another file.",
                found=str(copy),
                fix="give another folder, or --force to replace it",
            )
    return target


def _copies(built: Built, target: Path) -> list[tuple[Path, Path]]:
    """Every file and its copy."""
    if not built.libraries:
        return []
    pairs = [(library.path, target / library.path.name) for library in built.libraries]
    name = store.MANIFEST_COPY
    if built.runtime.startswith("onnxruntime"):
        name = pairs[0][1].with_suffix(".json").name
    return [*pairs, (built.folder / store.MANIFEST, target / name)]


def _same_file(one: Path, other: Path) -> bool:
    with store.writable(other):
        return other.is_file() and sha256_of(one) == sha256_of(other)


def copy_to(target: Path, built: Built) -> tuple[Path, ...]:
    """Copy libraries and manifest, each whole or not at all; those that are there stay."""
    pairs = _copies(built, target)
    with store.writable(target), Transaction() as files:
        for source, copy in pairs:
            if _same_file(source, copy):
                continue
            temporary, descriptor = files.temp(copy)
            os.close(descriptor)
            shutil.copyfile(source, temporary)
            files.publish(temporary, copy, replace=True)
    return tuple(copy for _, copy in pairs)

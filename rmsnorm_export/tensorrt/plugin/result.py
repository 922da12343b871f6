"""What the functions of ``rx.plugin`` return: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rmsnorm_export.errors import Error
from rmsnorm_export.system.shown import Shown

Style = Literal["load_library", "dlopen", "register", "functions"]
"""How a program loads a plugin library: ``IPluginRegistry::loadLibrary``, which asks the library
for its creators, or plain ``dlopen``, on which the library registers them itself; or ONNX Runtime's
``register_custom_ops_library``; or C functions, for PyTorch. A library made for the one must not be
loaded in the other way."""

PluginRuntime = Literal["tensorrt", "onnxruntime", "onnxruntime-cuda", "torch"]
"""What a build is for: the TensorRT plugin, the CPU kernels of ONNX Runtime, those and the CUDA
kernels (``runtime="onnxruntime", cuda=True``), or the CUDA kernels in PyTorch."""

FILES: dict[Style, str] = {
    "load_library": "librmsnorm_plugin.so",
    "dlopen": "librmsnorm_plugin_autoload.so",
}
"""The library for each style, as CMake names it."""

BUILD_FILES: dict[PluginRuntime, dict[Style, str]] = {
    "tensorrt": FILES,
    "onnxruntime": {"register": "librmsnorm_onnxruntime.so"},
    "onnxruntime-cuda": {"register": "librmsnorm_onnxruntime_cuda.so"},
    "torch": {"functions": "librmsnorm_torch.so"},
}
"""The libraries of a build."""


def with_cuda(runtime: PluginRuntime, cuda: object) -> PluginRuntime:
    """ONNX Runtime's with ``cuda``; the others have it anyway."""
    return "onnxruntime-cuda" if runtime == "onnxruntime" and cuda else runtime


def runtime_of(tensorrt: str, cuda: str, key: str) -> PluginRuntime:
    """What a build with these versions, "" for none, and this key is for."""
    other = with_cuda("onnxruntime", cuda)
    return "tensorrt" if tensorrt else other if other in key else "torch"


ToolStatus = Literal["ok", "missing", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """Something that building the plugin needs.

    Attributes:
        name: nvcc, host compiler, cmake, ninja or TensorRT headers.
        status: ok, missing, or broken (found, but of no use).
        path, version: of the program or folder; "" when missing or unknown.
        detail: where it was looked for, or why it is of no use.
        install: what brings it.
    """

    name: str
    status: ToolStatus
    path: str
    version: str
    detail: str
    install: str


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """One shared library of a build, and how it is to be loaded."""

    style: Style
    path: Path
    sha256: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Built(Shown):
    """A plugin that has been built.

    Attributes:
        key: name of the cache entry; another source, compiler, TensorRT, architecture or option
            makes another key.
        folder: of the entry, with the libraries, ``manifest.json`` and ``build.log``.
        libraries: one for each style of loading.
        architectures: CUDA architectures, e.g. ("90",); without CUDA the processor's.
        tensorrt, cuda, compiler: versions of the headers, nvcc and the host compiler; "" of what
            was not needed.
        created: when, in UTC (ISO 8601).
        cached: it was there already.
        seconds: that this call took.
        copies: the libraries in the folder that was asked for; () without one.
        notes: what was decided, or repaired, on the way.
    """

    key: str
    folder: Path
    libraries: tuple[Library, ...]
    architectures: tuple[str, ...]
    tensorrt: str
    cuda: str
    compiler: str
    created: str
    cached: bool = False
    seconds: float = 0.0
    copies: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def runtime(self) -> PluginRuntime:
        """What it was built for."""
        return runtime_of(self.tensorrt, self.cuda, self.key)

    def path(self, style: Style) -> Path:
        """The library for ``style``."""
        return next(library.path for library in self.libraries if library.style == style)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What one folder of the cache holds: a build, or why it is of no use."""

    folder: Path
    problem: str
    built: Built | None


@dataclasses.dataclass(frozen=True, slots=True)
class Creator:
    """A plugin creator that a library brings, with the names of the fields that it reads."""

    name: str
    version: str
    namespace: str
    fields: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryInfo:
    """What a library file says of itself.

    Attributes:
        style: how it is to be loaded; None when it is no plugin library.
        machine: processor that it is for, e.g. x86-64.
        needed: shared libraries that it is linked against.
        problem: why it cannot be used here; "" when nothing is known against it.
        fix: what to do about the problem; "" without one.
        creators: the plugins in it; () for a library without a self-test, which only a TensorRT
            runtime can list (see ``check``).
    """

    path: Path
    style: Style | None
    machine: str
    needed: tuple[str, ...]
    problem: str
    fix: str
    creators: tuple[Creator, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Plugins(Shown):
    """Outcome of ``list_plugins``: the builds in a folder, newest first, and the library files that
    were asked about."""

    cache: Path
    entries: tuple[Entry, ...]
    libraries: tuple[LibraryInfo, ...] = ()


RuntimeStatus = Literal[
    "passed", "failed", "crashed", "timeout", "incompatible", "broken", "missing"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried, e.g. ``create SkipRMSNorm: defaults``, and what was found."""

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeCheck:
    """One library in one runtime.

    Attributes:
        runtime: tensorrt, tensorrt_lean, tensorrt_rtx, onnxruntime; or ``none``: the library's own
            self-test, without TensorRT.
        version: of the runtime; "" without one.
        library: file name.
        status: passed, failed (a check did), crashed (the process ended on a signal, an abort or
            an exception), timeout, incompatible (the library was built for another major version
            of TensorRT), broken (the runtime cannot be imported), or missing (it is not installed,
            or the library has no self-test).
        detail: why, for a status other than passed.
        creators: that were found in the namespace rmsnorm_export.
        checks: in the order in which they were made, up to a crash.
    """

    runtime: str
    version: str
    library: str
    style: Style
    status: RuntimeStatus
    detail: str
    creators: tuple[Creator, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CheckResult(Shown):
    """Outcome of ``check``.

    Attributes:
        libraries: what was checked.
        runtimes: every library in every runtime, those that are missing included.
        passed: every library could be used and was tried, and every check in every installed
            runtime passed.
        notes: what was not checked, and what would enable it.
    """

    libraries: tuple[LibraryInfo, ...]
    runtimes: tuple[RuntimeCheck, ...]
    passed: bool
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class LoaderLine:
    """How one program is told to load the plugin.

    Attributes:
        loader: a name in ``LOADERS``.
        program: what it is the line for.
        style, library: how that program loads a library, and the right one for it.
        text: the command, or the Python, that does it.
        note: what else one has to know; "" if nothing.
    """

    loader: str
    program: str
    style: Style
    library: Path
    text: str
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CommandLines(Shown):
    """Outcome of ``command_lines``: a line for each program that was asked about."""

    model: str
    lines: tuple[LoaderLine, ...]


class BuildError(Error):
    """The plugin did not configure or compile.

    Attributes:
        log: everything that CMake and the compilers printed.
        tail: its last lines, or those around the first error.
    """

    def __init__(
        self, what: str, *, found: str, fix: str, log: Path, tail: tuple[str, ...]
    ) -> None:
        super().__init__(what, found=found, fix=fix)
        self.log = log
        self.tail = tail

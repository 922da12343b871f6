"""Results of ``rx.plugin``: frozen dataclasses of plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rmsnorm_export.errors import Error, VerificationError
from rmsnorm_export.system.shown import Shown

Style = Literal["load_library", "dlopen", "register", "functions"]
"""The call that loads a library: ``IPluginRegistry::loadLibrary``, which asks it for its
creators; plain ``dlopen``, on which the library registers them itself; ONNX Runtime's
``register_custom_ops_library``; or C functions, for PyTorch. A library made for the one must not be
loaded in the other way."""

PluginRuntime = Literal["tensorrt", "onnxruntime", "onnxruntime-cuda", "torch"]
"""The purpose of a build: the TensorRT plugin, the CPU kernels of ONNX Runtime, those and the CUDA
kernels (``runtime="onnxruntime", cuda=True``), or the CUDA kernels in PyTorch."""

LIBRARIES: dict[PluginRuntime, dict[Style, str]] = {
    "tensorrt": {"load_library": "librmsnorm_plugin.so", "dlopen": "librmsnorm_plugin_autoload.so"},
    "onnxruntime": {"register": "librmsnorm_onnxruntime.so"},
    "onnxruntime-cuda": {"register": "librmsnorm_onnxruntime_cuda.so"},
    "torch": {"functions": "librmsnorm_torch.so"},
}
"""The libraries of each build, as CMake names them."""


def with_cuda(runtime: PluginRuntime, cuda: object) -> PluginRuntime:
    """Return ONNX Runtime's build with ``cuda``; the others have it anyway."""
    return "onnxruntime-cuda" if runtime == "onnxruntime" and cuda else runtime


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """One shared library, how it is to be loaded, and the ``runtime`` that it was built for."""

    style: Style
    path: Path
    runtime: PluginRuntime


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Built(Shown):
    """The build for one runtime.

    Attributes:
        runtime: that it was built for.
        libraries: one for each style of loading.
        seconds: that the call took which built it.
    """

    runtime: PluginRuntime
    libraries: tuple[Library, ...]
    seconds: float = 0.0

    def path(self, style: Style) -> Path:
        """Return the library for ``style``."""
        return next(library.path for library in self.libraries if library.style == style)


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """Something that building needs; ``path`` is "" where it is missing, ``install`` brings it."""

    name: str
    path: str
    install: str


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One trial and its finding."""

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeCheck:
    """One library in one runtime.

    Attributes:
        runtime: tensorrt, tensorrt_lean, tensorrt_rtx, onnxruntime or torch.
        version: of the runtime; "" without one.
        library: file name.
        status: passed; failed: the runtime does not take it, or the process ended on a signal or in
            time; missing: the runtime is not installed.
        detail: the finding.
    """

    runtime: str
    version: str
    library: str
    style: Style
    status: Literal["passed", "failed", "missing"]
    detail: str


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CheckResult(Shown):
    """Outcome of ``check``.

    Attributes:
        runtimes: every library in every runtime, those that are missing included.
        passed: every library was tried in a runtime, and none failed.
    """

    runtimes: tuple[RuntimeCheck, ...]
    passed: bool

    @property
    def error(self) -> VerificationError | None:
        """The error of the first library that failed, or that nothing could try."""
        if self.passed:
            return None
        first = next((one for one in self.runtimes if one.status == "failed"), self.runtimes[0])
        fix = "build it anew with rmsnorm-export plugin build --force"
        if first.status == "missing":
            fix = f"{first.detail}, or pip install tensorrt_lean, whose registry needs no GPU"
        found = f"{first.library} in {first.runtime}: {first.status}: {first.detail}"
        return VerificationError("The plugin does not work.", found=found, fix=fix)


class BuildError(Error):
    """The plugin did not compile; ``log`` has everything that CMake and the compilers printed."""

    def __init__(self, what: str, *, found: str, fix: str, log: Path) -> None:
        super().__init__(what, found=found, fix=fix)
        self.log = log

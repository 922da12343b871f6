"""The libraries of each runtime: where their build is, and the result of a build."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any, Literal

from rmsnorm_export.errors import BackendMissingError, Error, InputError
from rmsnorm_export.system.files import StrPath, refusals_as
from rmsnorm_export.system.libraries import check_library
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.shown import Shown

Style = Literal["load_library", "dlopen", "register"]
"""The call that loads a library: ``IPluginRegistry::loadLibrary``, which asks it for its
creators; plain ``dlopen``, on which the library registers them itself; or ONNX Runtime's
``register_custom_ops_library``. A library made for the one must not be loaded in the other way."""

PluginRuntime = Literal["tensorrt", "onnxruntime", "onnxruntime-cuda"]
"""The purpose of a build: the TensorRT plugin, the CPU kernels of ONNX Runtime, or those and the
CUDA kernels (``runtime="onnxruntime", cuda=True``)."""

LIBRARIES: dict[PluginRuntime, dict[Style, str]] = {
    "tensorrt": {"load_library": "librmsnorm_plugin.so", "dlopen": "librmsnorm_plugin_autoload.so"},
    "onnxruntime": {"register": "librmsnorm_onnxruntime.so"},
    "onnxruntime-cuda": {"register": "librmsnorm_onnxruntime_cuda.so"},
}
"""The libraries of each build, as CMake names them."""


SOURCES = Path(__file__).parent / "_sources"
"""The CMake project: in a checkout a link to the folder plugins/."""

_PACKAGED = Path(__file__).parent / "_built" / "lib"
"""The build inside a wheel (pyproject.toml)."""

_BUILT_BY: dict[PluginRuntime, tuple[str, str]] = {
    "tensorrt": ("The TensorRT plugin is", ""),
    "onnxruntime": ("The kernels for ONNX Runtime are", " --runtime onnxruntime"),
    "onnxruntime-cuda": ("The CUDA kernels for ONNX Runtime are", " --runtime onnxruntime --cuda"),
}
"""The libraries in words, and the options that build them."""


def with_cuda(runtime: PluginRuntime, cuda: object) -> PluginRuntime:
    """Return ONNX Runtime's build with ``cuda``; the others have it anyway."""
    return "onnxruntime-cuda" if runtime == "onnxruntime" and cuda else runtime


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Built(Shown):
    """The build for one runtime.

    Attributes:
        runtime: what it was built for.
        libraries: one for each style of loading, by that.
        seconds: that the call took which built it.
    """

    runtime: PluginRuntime
    libraries: dict[Style, Path]
    seconds: float = 0.0

    def path(self, style: Style) -> Path:
        """Return the library for ``style``."""
        return self.libraries[style]


class BuildError(Error):
    """The plugin did not compile; ``log`` has everything that CMake and the compilers printed."""

    def __init__(self, what: str, *, found: str, fix: str, log: Path) -> None:
        super().__init__(what, found=found, fix=fix)
        self.log = log


def build_folder() -> Path:
    """Return the folder of this installation's builds, in the user's cache.

    Other sources, and every version, have one of their own.
    """
    home = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    key = f"{SOURCES.resolve()} {version_of('rmsnorm-export')}"
    place = hashlib.sha256(os.fsencode(key)).hexdigest()[:12]
    return root / "rmsnorm_export" / "plugins" / place


def read_build(folder: Path, runtime: PluginRuntime) -> Built:
    """Return the build in a folder, its libraries checked by `check_library`.

    Raises:
        BackendMissingError, OSError, ValueError: as there.
    """
    libraries = {style: folder / name for style, name in LIBRARIES[runtime].items()}
    for path in libraries.values():
        check_library(path)
    return Built(runtime, libraries)


def packaged_build(runtime: PluginRuntime) -> Built | None:
    """Return the build for a runtime that the wheel brought; None where it brought none."""
    with contextlib.suppress(OSError, ValueError):
        return read_build(_PACKAGED, runtime)
    return None


def find_build(runtime: PluginRuntime = "tensorrt") -> Built:
    """Return the build for a runtime: that of the wheel, else the one that ``build`` made.

    Raises:
        BackendMissingError: there is none, it is damaged, or others can write to it.
    """
    places = [_PACKAGED] if runtime == "onnxruntime" else []
    places.append(build_folder() / "lib")
    problem = f"none in {places[-1]}"
    for place in places:
        try:
            return read_build(place, runtime)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problem = f"damaged: {place}: {error}"
    noun = _BUILT_BY[runtime][0]
    raise BackendMissingError(f"{noun} not built.", found=problem, fix=_build_fix(runtime))


def _build_fix(runtime: PluginRuntime) -> str:
    return f"rmsnorm-export plugin build{_BUILT_BY[runtime][1]}"


def open_library(path: StrPath, style: Style) -> Path:
    """Return the library in a file, by its name, or the one beside it for another style.

    Args:
        path: of the file.
        style: how it will be loaded.

    Raises:
        InputError: it is missing, cut short or none of this package's.
        BackendMissingError: others can write to it.
    """
    file = Path(path).expanduser().absolute()
    every = {name: runtime for runtime, row in LIBRARIES.items() for name in row.values()}
    if file.name not in every:
        fix = f"give one of {', '.join(every)}"
        raise _unusable(file, "no library of this package has that name", fix)
    runtime = every[file.name]
    styles = LIBRARIES[runtime]
    if style not in styles:
        problem = f"it is for {' and '.join(styles)}, not for {style}"
        raise _unusable(file, problem, _build_fix(runtime))
    file = file.with_name(styles[style])
    if not file.is_file():
        raise _unusable(file, "there is no such file", "check the path")
    fix = _build_fix(runtime)
    with refusals_as("The library cannot be used.", file, fix=fix, also=(ValueError,)):
        check_library(file)
    return file


def _unusable(file: Path, problem: str, fix: str) -> InputError:
    return InputError("The library cannot be used.", found=f"{file}: {problem}", fix=fix)


def onnxruntime_library(*, cuda: bool = False) -> Path:
    """Return the library with ONNX Runtime's CPU kernels, of this wheel or else as it was built.

    Args:
        cuda: the one that has the CUDA kernels as well.

    Raises:
        BackendMissingError: nothing is built, or nothing that is whole, or others can write to it.
    """
    return find_build(with_cuda("onnxruntime", cuda)).path("register")


def session_options(library: StrPath | None = None, *, cuda: bool = False, threads: int = 0) -> Any:
    """Return ``onnxruntime.SessionOptions`` with the operator's kernels registered.

    The library has the operator's own names, so ONNX Runtime takes it instead of the function
    bodies of a ``portable`` file; without it the same file runs its bodies.

    Args:
        library: of ``rx.plugin.build(runtime="onnxruntime")``; None: of the wheel or the build.
        cuda: of None: the library with the CUDA kernels as well, for sessions with
            ``providers=["CUDAExecutionProvider", "CPUExecutionProvider"]``.
        threads: of one operator; 0 lets ONNX Runtime choose.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, is older than 1.17 or cannot load the
            library, nothing is built, or others can write to it.
        InputError: ``library`` is none of ONNX Runtime, or cut short.
    """
    from rmsnorm_export.runtime.session import session_options as plain_options

    given = None if library is None else open_library(library, "register")
    chosen = given or onnxruntime_library(cuda=cuda)
    return plain_options(optimize=True, threads=threads, kernels=chosen)

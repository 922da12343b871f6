"""Library files: what a file is, which one a loader needs, and what the cache has."""

from __future__ import annotations

import platform
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, InputError
from rmsnorm_export.system.elf import Elf, NotALibraryError, read_elf
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.plugin.arch import of_gpus
from rmsnorm_export.tensorrt.plugin.cache import cache_folder, kept_builds
from rmsnorm_export.tensorrt.plugin.probe import DIRECT, run_probe
from rmsnorm_export.tensorrt.plugin.result import (
    FILES,
    Built,
    LibraryInfo,
    PluginRuntime,
    Plugins,
    Style,
    with_cuda,
)

BUILD_FIX = "rmsnorm-export plugin build"
NATIVE_BUILD_FIX = f"{BUILD_FIX} --runtime onnxruntime"

_NOT_BUILT: dict[PluginRuntime, tuple[str, str]] = {
    "tensorrt": ("The TensorRT plugin is not built.", BUILD_FIX),
    "onnxruntime": ("The kernels for ONNX Runtime are not built.", NATIVE_BUILD_FIX),
    "onnxruntime-cuda": (
        "The CUDA kernels for ONNX Runtime are not built.",
        f"{NATIVE_BUILD_FIX} --cuda",
    ),
    "torch": ("The CUDA kernels for PyTorch are not built.", f"{BUILD_FIX} --runtime torch"),
}

_LIST_TIMEOUT = 60.0

_HERE = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}
"""Seconds for a library to list its creators."""

_TENSORRT_DISTRIBUTIONS = [
    f"tensorrt{kind}{cuda}" for kind in ("", "_lean") for cuda in ("", "_cu13", "_cu12")
]


def inspect_library(path: StrPath, *, creators: bool = True) -> LibraryInfo:
    """What the library file ``path`` is, and what is wrong with it.

    Args:
        path: of the file; nothing is raised for one that is missing or of no use.
        creators: load it, in a process of its own, to list the plugins in it.
    """
    file = Path(path).expanduser().absolute()
    problem = fix = ""
    elf = Elf()
    try:
        elf = read_elf(file)
    except FileNotFoundError:
        problem, fix = "there is no such file", f"check the path, or {BUILD_FIX}"
    except IsADirectoryError:
        problem, fix = "it is a folder", "give the path of a library in it"
    except OSError as error:
        problem, fix = f"it cannot be read: {error.strerror}", "check its permissions"
    except NotALibraryError as error:
        problem, fix = str(error), f"give a plugin library; {BUILD_FIX} makes one"
    style: Style | None = None
    here = _HERE.get(platform.machine(), platform.machine())
    if not problem and elf.machine != here:
        problem = f"it is for {elf.machine}, this machine is {here}"
        fix = f"build it on this machine: {BUILD_FIX}"
    elif not problem:
        style, problem, fix = _loading_style(elf)
    if problem or style in (None, "register", "functions") or not creators:
        return LibraryInfo(file, style, elf.machine, elf.needed, problem, fix)
    trial = run_probe(DIRECT, style, file, timeout=_LIST_TIMEOUT, only_creators=True)
    if trial.status not in ("passed", "missing"):
        problem, fix = load_problem(trial.detail)
    return LibraryInfo(file, style, elf.machine, elf.needed, problem, fix, trial.creators)


def _loading_style(elf: Elf) -> tuple[Style | None, str, str]:
    """How the library is to be loaded, or why it is not to be."""
    entry_points = {"getCreators", "setLoggerFinder"}
    if present := entry_points & elf.exported:
        if missing := entry_points - present:
            problem = f"it exports {', '.join(present)} but not {', '.join(missing)}"
            return None, problem, "export both, or take the library of this package"
        if elf.registers:
            problem = "it hands out its creators and registers them as well, which crashes"
            return None, problem, "keep the two in separate libraries, as this package does"
        return "load_library", "", ""
    if elf.registers:
        return "dlopen", "", ""
    if "RegisterCustomOps" in elf.exported:
        return "register", "", ""
    if "rmsnorm_launch" in elf.exported:
        return "functions", "", ""
    problem = "it is no plugin library: it exports no getCreators and registers nothing"
    return None, problem, f"give a plugin library; {BUILD_FIX} makes one"


def load_problem(detail: str) -> tuple[str, str]:
    """What a message of the dynamic linker means, and what to do."""
    if "cannot open shared object file" in detail:
        missing = detail.split(": cannot open")[0].split(": ")[-1]
        brings = "pip install nvidia-cuda-runtime" if "cudart" in missing else "install what has it"
        fix = f"{brings}, and put its folder in LD_LIBRARY_PATH"
        return f"it needs {missing}, which is not found", fix
    return detail, "run rmsnorm-export plugin check -v for details"


def list_plugins(*libraries: StrPath, cache: StrPath | None = None) -> Plugins:
    """The builds that are kept, and what is in the given library files.

    Args:
        libraries: files to look into.
        cache: folder of the builds; by default that of ``build``.
    """
    folder = cache_folder(cache)
    return Plugins(folder, kept_builds(cache), tuple(inspect_library(path) for path in libraries))


def installed_major() -> str:
    """The major version of this Python's TensorRT; "" without one."""
    return next(filter(None, map(version_of, _TENSORRT_DISTRIBUTIONS)), "").split(".")[0]


def best_build(cache: StrPath | None = None, runtime: PluginRuntime = "tensorrt") -> Built:
    """The build for ``runtime`` that fits this machine best.

    Raises:
        BackendMissingError: there is none.
    """
    folder = cache_folder(cache)
    kept = kept_builds(cache)
    whole = [e.built for e in kept if e.built is not None and e.built.runtime == runtime]
    if not whole:
        names = ", ".join(entry.folder.name for entry in kept if entry.built is None)
        found = f"none in {folder}{'; damaged: ' if names else ''}{names}"
        what, fix = _NOT_BUILT[runtime]
        raise BackendMissingError(what, found=found, fix=fix)
    if len(whole) == 1 or runtime == "onnxruntime":
        return whole[0]
    gpus, tensorrt = set(of_gpus()), installed_major() if runtime == "tensorrt" else ""

    def unfit(built: Built) -> tuple[bool, bool]:
        covered = {name.rstrip("af") for name in built.architectures}
        return tensorrt not in ("", built.tensorrt.split(".")[0]), not gpus <= covered

    return min(whole, key=unfit)  # of equals the first, the newest


def onnxruntime_library(*, cuda: bool = False, cache: StrPath | None = None) -> Path:
    """The library with ONNX Runtime's CPU kernels, of this wheel or else of the newest build.

    Args:
        cuda: the one that has the CUDA kernels as well, of the build that fits the GPUs at hand.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        BackendMissingError: nothing is built, or nothing that is whole.
    """
    return best_build(cache, with_cuda("onnxruntime", cuda)).path("register")


def use_in_torch(library: StrPath | None = None, *, cache: StrPath | None = None) -> Path:
    """Let ``torch.ops.rmsnorm_export.*`` run the CUDA kernels of a library on CUDA tensors.

    Norms that the kernels do not compute stay with PyTorch's own operators; a warning says so.

    Args:
        library: of ``rx.plugin.build(runtime="torch")``; None: the build that fits best.
        cache: folder of the builds; by default that of ``build``.

    Returns:
        The library.

    Raises:
        BackendMissingError: PyTorch is not installed, or nothing is built.
        InputError: ``library`` cannot be loaded, or belongs to another version of this package.
    """
    chosen = best_build(cache, "torch").path("functions") if library is None else Path(library)
    import rmsnorm_export.torch  # noqa: F401
    from rmsnorm_export.torch.operator.kernels import use

    use(chosen)
    return chosen


def sibling(path: StrPath, style: Style) -> Path:
    """The library for ``style`` that belongs to the library ``path``.

    Raises:
        InputError: ``path`` is for the other style, and there is none for this one beside it.
    """
    info = inspect_library(path, creators=False)
    if info.style == style:
        return info.path
    beside = info.path.parent / FILES[style]
    if info.style is not None and beside.is_file():
        return beside
    raise InputError(
        "The library cannot be loaded in this way.",
        found=f"{info.path}: {info.problem or f'it is for {info.style}, {style} is needed'}",
        fix=info.fix or f"put {FILES[style]} beside it, or {BUILD_FIX}",
    )

"""Library files: what a file is, which one a loader needs, and what the cache has."""

from __future__ import annotations

import platform
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, InputError
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.plugin.arch import of_gpus
from rmsnorm_export.tensorrt.plugin.cache import cache_folder, entries
from rmsnorm_export.tensorrt.plugin.elf import Elf, NotALibraryError, machine_name, read_elf
from rmsnorm_export.tensorrt.plugin.loaders import style_of
from rmsnorm_export.tensorrt.plugin.result import FILES, Built, LibraryInfo, Plugins, Style
from rmsnorm_export.tensorrt.plugin.trial import DIRECT, run_probe

BUILD_FIX = "rmsnorm-export plugin build"

_LIST_TIMEOUT = 60.0
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
    elf = Elf("", frozenset(), frozenset(), (), False)
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
    here = machine_name(platform.machine())
    if not problem and elf.machine != here:
        problem = f"it is for {elf.machine}, this machine is {here}"
        fix = f"build it on this machine: {BUILD_FIX}"
    elif not problem:
        style, problem, fix = _loading_style(elf)
    if problem or style is None or not creators:
        return LibraryInfo(file, style, elf.machine, elf.needed, problem, fix)
    trial = run_probe(DIRECT, style, file, timeout=_LIST_TIMEOUT, only_creators=True)
    if trial.status != "passed":
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
    problem = "it is no plugin library: it exports no getCreators and registers nothing"
    return None, problem, f"give a plugin library; {BUILD_FIX} makes one"


def load_problem(detail: str) -> tuple[str, str]:
    """What a message of the dynamic linker means, and what to do."""
    if "cannot open shared object file" in detail:
        missing = detail.split(": cannot open")[0].split(": ")[-1]
        package = "nvidia-cuda-runtime" if "cudart" in missing else "the package that has it"
        fix = f"pip install {package}, and put its folder in LD_LIBRARY_PATH"
        return f"it needs {missing}, which is not found", fix
    return detail, "run rmsnorm-export plugin check -v for details"


def list_plugins(*libraries: StrPath, cache: StrPath | None = None) -> Plugins:
    """The builds that are kept, and what is in the given library files.

    Args:
        libraries: files to look into.
        cache: folder of the builds; by default that of ``build``.
    """
    folder = cache_folder(cache)
    return Plugins(folder, entries(folder), tuple(inspect_library(path) for path in libraries))


def library(loader: str = "load_library", *, cache: StrPath | None = None) -> Path:
    """The library file for a loader, from the build that fits this machine best.

    That is the newest for the installed TensorRT and the GPUs at hand, else the newest.

    Args:
        loader: a name in ``LOADERS``.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        BackendMissingError: nothing is built, or nothing that is whole.
    """
    return best_build(cache).path(style_of(loader))


def installed_major() -> str:
    """The major version of this Python's TensorRT; "" without one."""
    return next(filter(None, map(version_of, _TENSORRT_DISTRIBUTIONS)), "").split(".")[0]


def best_build(cache: StrPath | None = None) -> Built:
    """The build that fits this machine best.

    Raises:
        BackendMissingError: there is none.
    """
    folder = cache_folder(cache)
    kept = entries(folder)
    whole = [entry.built for entry in kept if entry.built is not None]
    if not whole:
        damaged = f"; damaged: {', '.join(e.folder.name for e in kept)}" if kept else ""
        raise BackendMissingError(
            "The TensorRT plugin is not built.", found=f"none in {folder}{damaged}", fix=BUILD_FIX
        )
    if len(whole) == 1:
        return whole[0]
    gpus, tensorrt = set(of_gpus()), installed_major()

    def unfit(built: Built) -> tuple[bool, bool]:
        covered = {name.rstrip("af") for name in built.architectures}
        return tensorrt not in ("", built.tensorrt.split(".")[0]), not gpus <= covered

    return min(whole, key=unfit)  # of equals the first, the newest


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

"""Library files: what a file is, which one a loader needs, and what the cache has."""

from __future__ import annotations

import dataclasses
import platform
import struct
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, InputError
from rmsnorm_export.runtime.support import CUDA
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


def has_cuda_nodes(library: StrPath) -> bool:
    """Whether a library for ONNX Runtime has kernels for its CUDA provider."""
    return CUDA.encode() in Path(library).read_bytes()


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


_MACHINES = {3: "x86 (32-bit)", 40: "ARM (32-bit)", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}
_HERE = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}

_SHARED = 3  # e_type ET_DYN
_SECTION_DYNAMIC, _SECTION_SYMBOLS = 6, 11  # sh_type SHT_DYNAMIC, SHT_DYNSYM
_NEEDED = 1  # d_tag DT_NEEDED

_HEADER = "HHIQQQIHHHHHH"
_SECTION = "IIQQQQIIQQ"
_SYMBOL = "IBBHQQ"
_DYNAMIC = "qQ"


class NotALibraryError(ValueError):
    """The file is no shared library; the message says what it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elf:
    """What a shared library says of itself, read from the file without loading it.

    Source: the ELF-64 object file format, version 1.5; System V ABI, chapters 4 and 5.

    Attributes:
        machine: processor.
        exported: names of the functions and variables that it has for others.
        needed: libraries that it is linked against.
        registers: it mentions ``getPluginRegistry``, without which none can register a plugin.
    """

    machine: str = ""
    exported: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()
    registers: bool = False


def read_elf(path: Path) -> Elf:
    """The facts of the shared library ``path``.

    Raises:
        NotALibraryError: it is something else, or cut short.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    if not data:
        raise NotALibraryError("the file is empty")
    if data[:4] != b"\x7fELF":
        raise NotALibraryError(f"the file begins with {data[:4]!r}, a shared library with ELF")
    if len(data) < 64:
        raise NotALibraryError("the file is cut short")
    order = ">" if data[5] == 2 else "<"
    kind, machine = struct.unpack_from(f"{order}HH", data, 16)
    name = _MACHINES.get(machine, f"machine {machine}")
    if kind != _SHARED:
        raise NotALibraryError("the file is an object file or a program, no shared library")
    if data[4] != 2:
        return Elf(name)  # 32-bit: of another machine
    try:
        return _elf_facts(data, order, name)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotALibraryError(f"the file is cut short or damaged ({error})") from error


def _elf_facts(data: bytes, order: str, machine: str) -> Elf:
    header = struct.unpack_from(order + _HEADER, data, 16)
    offset, size, count = header[5], header[10], header[11]
    sections = [struct.unpack_from(order + _SECTION, data, offset + i * size) for i in range(count)]
    exported: set[str] = set()
    needed: list[str] = []
    for section in sections:
        if section[1] not in (_SECTION_SYMBOLS, _SECTION_DYNAMIC):
            continue
        begin, length = section[4], section[5]
        strings = sections[section[6]]
        table = data[strings[4] : strings[4] + strings[5]]
        if begin + length > len(data) or len(table) < strings[5]:
            raise ValueError("a section ends behind the file")
        part = data[begin : begin + length]
        if section[1] == _SECTION_SYMBOLS:
            for name, _info, _other, where, _value, _size in struct.iter_unpack(
                order + _SYMBOL, part
            ):
                if where:
                    exported.add(_string(table, name))
        else:
            for tag, value in struct.iter_unpack(order + _DYNAMIC, part):
                if tag == _NEEDED:
                    needed.append(_string(table, value))
                elif tag == 0:
                    break
    return Elf(machine, frozenset(exported - {""}), tuple(needed), b"getPluginRegistry" in data)


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "replace")

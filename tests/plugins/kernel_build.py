"""Builds of plugins/kernels for tests, cached by a hash of the sources: on a CPU, and by nvcc.

An entry of the cache is a folder that appears whole or not at all, as in the corpus.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.tools.corpus import cache
from tests.tools.lib.command import ROOT

PLUGINS = ROOT / "plugins"
KERNELS = PLUGINS / "kernels"
SHIM = PLUGINS / "tests" / "shim"
FIBRES = SHIM / "fibres.cpp"
DRIVER = PLUGINS / "tests" / "kernels" / "driver.cpp"
NODES = PLUGINS / "onnxruntime"

NO_NVCC = "no nvcc: pip install 'rmsnorm-export[plugin]'"

UNITS = ("rmsnorm.cu", "rmsnorm_f32.cu", "rmsnorm_f16.cu", "rmsnorm_bf16.cu")
"""The translation units of the kernels."""

# A contracted a * b + c would hide a missing rounding step.
_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fPIC")
# nvcc's own pragma.
_KERNEL_FLAGS = ("-Wno-unknown-pragmas",)
_NVCC_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xcompiler=-fPIC,-Wall,-Wextra")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Of the kernels' many instances: built in half the time of -O1 with all checks, and run as fast.
# What is left out AddressSanitizer sees, too: a null pointer, or one beyond its object.
_WATCHED = (
    *("-Og", "-finline-functions-called-once", "-fno-var-tracking", *SANITIZERS),
    "-fno-sanitize=null,object-size,pointer-overflow,vptr",
)


_WHEEL = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"
"""Where the wheels nvidia-cuda-nvcc and nvidia-cuda-runtime put bin/ and include/."""


def find_nvcc() -> pathlib.Path | None:
    """nvcc of CUDA_HOME, else of PATH, else of the wheel."""
    folders = [f"{os.environ.get('CUDA_HOME', '')}/bin", os.environ.get("PATH", "")]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*folders, str(_WHEEL / "bin")]))
    return pathlib.Path(nvcc) if nvcc else None


def find_headers() -> pathlib.Path | None:
    """The folder of cuda_runtime_api.h and cuda_fp8.h."""
    nvcc = find_nvcc()
    candidates = [nvcc.resolve().parents[1] / "include"] if nvcc else []
    candidates += [_WHEEL / "include", pathlib.Path("/usr/local/cuda/include")]
    return next((path for path in candidates if (path / "cuda_fp8.h").is_file()), None)


def missing_compiler() -> str | None:
    """Why the kernels cannot be built for a CPU, with what would help."""
    if shutil.which("g++") is None:
        return "no g++ on PATH: install g++ 11 or later"
    if find_headers() is None:
        return "no CUDA headers: pip install nvidia-cuda-runtime nvidia-cuda-nvcc"
    return None


def source_hash(*folders: pathlib.Path, settings: Iterable[object] = ()) -> str:
    """Of every file in the folders and of the settings."""
    digest = hashlib.sha256("\n".join(map(str, settings)).encode())
    for folder in folders:
        for path in sorted(filter(pathlib.Path.is_file, folder.iterdir())):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run(command: Iterable[object]) -> str:
    """Both streams of a command that has to succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def nvcc_command(architecture: int) -> list[object]:
    """nvcc with the flags of every source, for one architecture, e.g. 90."""
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    return [find_nvcc(), *_NVCC_FLAGS, code, "-I", KERNELS]


def nvcc_object(unit: str, architecture: int) -> tuple[pathlib.Path, str]:
    """Return the object of a unit, a minute or less when it is new, and what ptxas said of it."""
    command = [*nvcc_command(architecture), "-Xptxas=-v", "-c", KERNELS / unit, "-o"]
    key = source_hash(KERNELS, settings=(run([find_nvcc(), "--version"]), *command))
    name = f"{pathlib.Path(unit).stem}-sm_{architecture}"

    def fill(folder: pathlib.Path) -> None:
        report = run([*command, folder / f"{name}.o"])
        (folder / "ptxas.txt").write_text(report, encoding="utf-8")

    built = cache.entry("kernels", name, key, fill)
    return built / f"{name}.o", (built / "ptxas.txt").read_text(encoding="utf-8")


def _compiler() -> list[object]:
    """g++ for what is on the shim."""
    return ["g++", *_FLAGS, "-I", KERNELS, "-I", SHIM, "-isystem", find_headers()]


def shim_driver() -> pathlib.Path:
    """The program of plugins/tests/kernels/driver.cpp with the kernels in it, sanitised."""
    version = run(["g++", "--version"]).splitlines()[0]
    sources = [KERNELS / name for name in UNITS] + [FIBRES, DRIVER]

    def fill(folder: pathlib.Path) -> None:
        def compile_one(source: pathlib.Path) -> pathlib.Path:
            built = folder / f"{source.name}.o"
            # The sanitizers watch the kernels; the fibres only take turns, in half of the time.
            own = ("-O2",) if source == FIBRES else (*_KERNEL_FLAGS, *_WATCHED)
            run([*_compiler(), *own, "-x", "c++", "-c", source, "-o", built])
            return built

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_one, sources))
        run(["g++", *SANITIZERS, *objects, "-o", folder / "driver"])

    key = source_hash(KERNELS, SHIM, DRIVER.parent, settings=(version, *_compiler(), *_WATCHED))
    return cache.entry("kernels", "shim", key, fill) / "driver"


def _library(name: str, entry: str, parts: Sequence[object], *more: pathlib.Path) -> pathlib.Path:
    """A library of sources on the shim, of the kernels' folders and ``more``."""
    command = [*_compiler(), *_KERNEL_FLAGS, "-shared", *parts]
    key = source_hash(KERNELS, SHIM, *more, settings=command)

    def fill(folder: pathlib.Path) -> None:
        run([*command, "-o", folder / name])

    return cache.entry("kernels", entry, key, fill) / name


def shim_library() -> pathlib.Path:
    """The C functions of plugins/torch with the kernels in them, for a CPU."""
    source = PLUGINS / "torch" / "c_api.cpp"
    # Not optimized: it is compiled in half the time, and few rows run through it.
    parts = ["-O0", "-x", "c++", *(KERNELS / name for name in UNITS), FIBRES, source]
    return _library("library.so", "shim-library", parts, source.parent)


def _nodes(entry: str, *parts: object) -> pathlib.Path:
    """A library for ONNX Runtime with the nodes of its CUDA provider."""
    own, shim = NODES / "cuda" / "nodes.cpp", PLUGINS / "tests" / "onnxruntime" / "shim.cpp"
    sources = [NODES / "operator.cpp", NODES / "library.cpp", own, shim]
    folders = (NODES, own.parent, shim.parent)
    return _library("librmsnorm_onnxruntime_cuda.so", entry, [*sources, *parts], *folders)


def node_library() -> pathlib.Path:
    """One whose nodes launch the kernels of ``shim_library``."""
    kernels = shim_library()
    return _nodes("nodes", "-O0", "-Wl,-z,defs", kernels, f"-Wl,-rpath,{kernels.parent}")


def sanitized_node_library() -> pathlib.Path:
    """One with its own kernels, both sanitised: for a process with ``sanitizer_environment``."""
    objects = [shim_driver().with_name(f"{name}.o") for name in (*UNITS, "fibres.cpp")]
    return _nodes("nodes-sanitized", *SANITIZERS, *objects)


def sanitizer_environment() -> dict[str, str]:
    """AddressSanitizer before Python, whose own memory at the end is no leak."""
    names = ("libasan.so", "libstdc++.so")
    preload = " ".join(run(["g++", f"-print-file-name={name}"]).strip() for name in names)
    return {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}


def exported(library: pathlib.Path) -> list[str]:
    """The functions that a library has for others."""
    return [line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()]

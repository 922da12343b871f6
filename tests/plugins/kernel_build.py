"""Builds of plugins/kernels for tests, cached by a hash of the sources: for a GPU, and interpreted.

An entry of the cache is a folder that appears whole or not at all, as in the corpus.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pathlib
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from toolbox.command import ROOT
from toolbox.corpus import cache

PLUGINS = ROOT / "plugins"
KERNELS = PLUGINS / "kernels"
PTX = PLUGINS / "tests" / "ptx"
DRIVER = PLUGINS / "tests" / "kernels" / "driver.cpp"
TUNE = DRIVER.with_name("tune.cu")
NODES = PLUGINS / "onnxruntime"
C_API = PLUGINS / "torch" / "c_api.cpp"

NO_NVCC = "no nvcc: pip install 'rmsnorm-export[plugin]'"

UNITS = ("rmsnorm.cu", "rmsnorm_f32.cu", "rmsnorm_f16.cu", "rmsnorm_bf16.cu")
"""The translation units of the kernels."""

INTERPRETED = (80, 90)
"""The architectures whose PTX the interpreter has: a GPU takes that of the last one before it."""

_NVCC_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xcompiler=-fPIC,-Wall,-Wextra")
_FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# The interpreter rounds each step once, and is too slow with anything less.
_INTERPRETER_FLAGS = ("-O3", "-march=native", "-ffp-contract=off")

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
    """Why the kernels cannot be built, with what would help."""
    if shutil.which("g++") is None:
        return "no g++ on PATH: install g++ 11 or later"
    return NO_NVCC if find_nvcc() is None or find_headers() is None else None


def source_hash(*folders: pathlib.Path, settings: Iterable[object] = ()) -> str:
    """Of every file in the folders and of the settings, wherever the checkout is."""
    said = "\n".join(map(str, settings)).replace(str(ROOT), "")
    digest = hashlib.sha256(said.encode())
    for folder in folders:
        for path in sorted(filter(pathlib.Path.is_file, folder.iterdir())):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run(command: Iterable[object], folder: pathlib.Path | None = None) -> str:
    """Both streams of a command that has to succeed, and begins in a folder."""
    words = [*map(str, command)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def nvcc_command(architecture: int) -> list[object]:
    """nvcc with the flags of every source, for one architecture, e.g. 90."""
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    return [find_nvcc(), *_NVCC_FLAGS, code, "-I", KERNELS]


def nvcc_object(unit: str, architecture: int) -> pathlib.Path:
    """Return the object of a unit, which takes a minute or less when it is new."""
    name = f"{pathlib.Path(unit).stem}-sm_{architecture}.o"
    command = [*nvcc_command(architecture), "-c", KERNELS / unit, "-o", name]
    return made(name, command, of=(KERNELS,))


def ptxas_report(unit: str, architecture: int) -> str:
    """Return what ptxas says of the kernels of a unit; nothing of the host is compiled."""
    command = [*nvcc_command(architecture), "-Xptxas=-v", "-cubin", KERNELS / unit]
    return run([*command, "-o", os.devnull])


def _version() -> str:
    return "".join(run([one, "--version"]) for one in (find_nvcc(), "g++") if one)


def _compiler() -> list[object]:
    """g++ for what calls the kernels, and for the interpreter."""
    return ["g++", *_FLAGS, "-I", KERNELS, "-I", PTX, "-isystem", find_headers()]


def interpreter() -> list[pathlib.Path]:
    """The objects of plugins/tests/ptx."""
    sources = sorted(PTX.glob("*.cpp"))
    command = [*_compiler(), *_INTERPRETER_FLAGS, "-c"]

    def fill(folder: pathlib.Path) -> None:
        with ThreadPoolExecutor() as pool:
            [*pool.map(lambda s: run([*command, s, "-o", folder / f"{s.stem}.o"]), sources)]

    key = source_hash(PTX, KERNELS, settings=(_version(), platform.machine(), *command))
    built = cache.entry("kernels", "interpreter", key, fill)
    return [built / f"{source.stem}.o" for source in sources]


_PTX_TO_HOST = ("g++", "-std=c++17", "-fpreprocessed", "-fPIC", "-Og", "-x", "c++", "-c")


def _ptx_command(*architectures: int) -> list[object]:
    """nvcc up to the host's code with the PTX of architectures inside."""
    code = [f"-gencode=arch=compute_{sm},code=compute_{sm}" for sm in architectures]
    return [find_nvcc(), "-std=c++17", "-O3", "--no-compress", *code, "-I", KERNELS, "--cuda"]


def kernels(*architectures: int, sanitized: bool = False) -> list[pathlib.Path]:
    """The objects of the kernels' host code, with their PTX inside: two minutes when it is new."""
    nvcc = _ptx_command(*(architectures or INTERPRETED))

    def fill(folder: pathlib.Path) -> None:
        def compile_one(unit: str) -> None:
            between = folder / f"{unit}.ii"
            run([*nvcc, KERNELS / unit, "-o", between])
            run([*_PTX_TO_HOST, between, "-o", folder / f"plain-{unit}.o"])
            run([*_PTX_TO_HOST, *SANITIZERS, between, "-o", folder / f"sanitized-{unit}.o"])
            between.unlink()

        with ThreadPoolExecutor() as pool:
            [*pool.map(compile_one, UNITS)]

    key = source_hash(KERNELS, settings=(_version(), *nvcc, *_PTX_TO_HOST, *SANITIZERS))
    built = cache.entry("kernels", "ptx", key, fill)
    return [built / f"{'sanitized' if sanitized else 'plain'}-{unit}.o" for unit in UNITS]


def made(name: str, *commands: Sequence[object], of: Iterable[pathlib.Path]) -> pathlib.Path:
    """What the last of the commands makes of the sources in folders; each begins in its folder."""

    def fill(folder: pathlib.Path) -> None:
        for command in commands:
            run(command, folder)

    key = source_hash(*of, settings=(_version(), *itertools.chain(*commands)))
    return cache.entry("kernels", name, key, fill) / name


def driver(*architectures: int) -> pathlib.Path:
    """The program of plugins/tests/kernels/driver.cpp, interpreted, its host code sanitised."""
    parts = [DRIVER, *kernels(*architectures, sanitized=True), *interpreter()]
    command = [*_compiler(), "-Og", *SANITIZERS, *parts, "-o", "driver"]
    return made("driver", command, of=(KERNELS, PTX, DRIVER.parent))


def defects() -> pathlib.Path:
    """The program of plugins/tests/ptx/defects.cu, on the interpreter."""
    nvcc = [*_ptx_command(90), "-I", PTX, PTX / "defects.cu", "-o", "defects.ii"]
    host = ["g++", "-std=c++17", "-fpreprocessed", "-x", "c++", "defects.ii", "-x", "none"]
    return made("defects", nvcc, [*host, *interpreter(), "-o", "defects"], of=(KERNELS, PTX))


def library() -> pathlib.Path:
    """The C functions of plugins/torch, on the interpreter."""
    parts = [C_API, *kernels(), *interpreter()]
    command = [*_compiler(), "-shared", "-Og", *parts, "-o", "librmsnorm_torch.so"]
    return made("librmsnorm_torch.so", command, of=(KERNELS, PTX, C_API.parent))


def tune_library() -> pathlib.Path:
    """The variants of the row kernel, on the interpreter, of one architecture."""
    parts = [C_API, kernels()[0], "tune.o", *interpreter()]
    return made(
        "librmsnorm_tune.so",
        [*_ptx_command(90), TUNE, "-o", "tune.ii"],
        [*_PTX_TO_HOST, "tune.ii", "-o", "tune.o"],
        [*_compiler(), "-shared", "-Og", *parts, "-o", "librmsnorm_tune.so"],
        of=(KERNELS, PTX, TUNE.parent, C_API.parent),
    )


def node_library(*, sanitized: bool = False) -> pathlib.Path:
    """A library for ONNX Runtime with the nodes of its CUDA provider, on the interpreter.

    Sanitised it is for a process with ``sanitizer_environment``.
    """
    name, own = "librmsnorm_onnxruntime_cuda.so", NODES / "cuda" / "nodes.cpp"
    registered = PLUGINS / "tests" / "onnxruntime" / "nodes.cpp"
    sources = [NODES / "operator.cpp", NODES / "library.cpp", own, registered]
    how = SANITIZERS if sanitized else ("-Wl,-z,defs",)
    parts = [*how, *sources, *kernels(sanitized=sanitized), *interpreter()]
    command = [*_compiler(), "-shared", "-Og", *parts, "-o", name]
    return made(name, command, of=(KERNELS, PTX, NODES, own.parent, registered.parent))


def sanitizer_environment() -> dict[str, str]:
    """AddressSanitizer before Python, whose own memory at the end is no leak."""
    names = ("libasan.so", "libstdc++.so")
    preload = " ".join(run(["g++", f"-print-file-name={name}"]).strip() for name in names)
    return {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}


def exported(library: pathlib.Path) -> list[str]:
    """The functions that a library has for others."""
    return [line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()]

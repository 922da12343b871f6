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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from bench.gpu import build
from bench.gpu.build import KERNELS, PLUGINS
from tests.tools.corpus import cache

SHIM = PLUGINS / "tests" / "shim"
FIBRES = SHIM / "fibres.cpp"
DRIVER = PLUGINS / "tests" / "kernels" / "driver.cpp"

UNITS = ("rmsnorm.cu", "rmsnorm_f32.cu", "rmsnorm_f16.cu", "rmsnorm_bf16.cu")
"""The translation units of the kernels."""

JOBS = min(2, os.cpu_count() or 1)

# A contracted a * b + c would hide a missing rounding step.
_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
# nvcc's own pragma.
_KERNEL_FLAGS = ("-Wno-unknown-pragmas",)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Of the kernels' many instances: built in half the time of -O1 with all checks, and run as fast.
# What is left out AddressSanitizer sees, too: a null pointer, or one beyond its object.
_WATCHED = (
    *("-Og", "-finline-functions-called-once", "-fno-var-tracking", *SANITIZERS),
    "-fno-sanitize=null,object-size,pointer-overflow,vptr",
)


def wheel_folder() -> pathlib.Path:
    """Where the wheels nvidia-cuda-nvcc and nvidia-cuda-runtime put bin/ and include/."""
    return pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"


def find_nvcc() -> pathlib.Path | None:
    """nvcc of CUDA_HOME, else of PATH, else of the wheel."""
    home = os.environ.get("CUDA_HOME")
    candidates = [pathlib.Path(home) / "bin" / "nvcc"] if home else []
    on_path = shutil.which("nvcc")
    candidates += [pathlib.Path(on_path)] if on_path else []
    candidates.append(wheel_folder() / "bin" / "nvcc")
    return next((path for path in candidates if path.is_file()), None)


def find_headers() -> pathlib.Path | None:
    """The folder of cuda_runtime_api.h and cuda_fp8.h."""
    nvcc = find_nvcc()
    candidates = [nvcc.resolve().parents[1] / "include"] if nvcc else []
    candidates += [wheel_folder() / "include", pathlib.Path("/usr/local/cuda/include")]
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


def run(command: Iterable[object], folder: pathlib.Path | None = None) -> str:
    """Both streams of a command that has to succeed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def nvcc_objects(jobs: Iterable[tuple[str, int]], folder: pathlib.Path) -> list[str]:
    """Put objects of units and architectures into a folder.

    Returns:
        What ptxas said of each; a minute or less for each that is new.
    """
    nvcc = str(find_nvcc())
    version = run([nvcc, "--version"])

    def compiled(unit: str, architecture: int) -> str:
        source, arch = KERNELS / unit, str(architecture)
        key = source_hash(KERNELS, settings=(version, *build.FLAGS, unit, arch))
        name = f"{source.stem}-sm_{arch}"
        made = cache.entry(
            "kernels",
            name,
            key,
            lambda new: build.compiled(nvcc, arch, source, new) and None,
        )
        shutil.copytree(made, folder, dirs_exist_ok=True)
        (report,) = made.glob("*.ptxas")
        return report.read_text()

    with ThreadPoolExecutor(JOBS) as pool:
        return [report.result() for report in [pool.submit(compiled, *job) for job in jobs]]


def shim_driver() -> pathlib.Path:
    """The program of plugins/tests/kernels/driver.cpp with the kernels in it, sanitised."""
    headers = find_headers()
    version = run(["g++", "--version"]).splitlines()[0]
    flags = (*_FLAGS, "-fPIC", "-I", KERNELS, "-I", SHIM, "-isystem", headers)
    sources = [KERNELS / name for name in UNITS] + [FIBRES, DRIVER]

    def fill(folder: pathlib.Path) -> None:
        def compile_one(source: pathlib.Path) -> pathlib.Path:
            built = folder / f"{source.name}.o"
            # The sanitizers watch the kernels; the fibres only take turns, in half of the time.
            own = ("-O2",) if source == FIBRES else (*_KERNEL_FLAGS, *_WATCHED)
            run(["g++", *flags, *own, "-x", "c++", "-c", source, "-o", built])
            return built

        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(compile_one, sources))
        run(["g++", *SANITIZERS, *objects, "-o", folder / "driver"])

    key = source_hash(KERNELS, SHIM, DRIVER.parent, settings=(version, *flags, *_WATCHED))
    return cache.entry("kernels", "shim", key, fill) / "driver"


def shim_library() -> pathlib.Path:
    """The C functions of plugins/torch with the kernels in them, for a CPU."""
    # Not optimized: it is compiled in half the time, and few rows run through it.
    flags = (*_FLAGS, "-O0", "-fPIC", "-I", KERNELS, "-I", SHIM, "-isystem", find_headers())
    source = PLUGINS / "torch" / "c_api.cpp"

    def fill(folder: pathlib.Path) -> None:
        units = [KERNELS / name for name in UNITS]
        command = ["g++", *flags, *_KERNEL_FLAGS, "-shared", "-x", "c++", *units]
        run([*command, FIBRES, source, "-o", folder / "library.so"])

    key = source_hash(KERNELS, SHIM, source.parent, settings=flags)
    return cache.entry("kernels", "shim-library", key, fill) / "library.so"


NODES = PLUGINS / "onnxruntime"
_NODE_LIBRARY = "librmsnorm_onnxruntime_cuda.so"


def _node_sources() -> list[pathlib.Path]:
    """The nodes of ONNX Runtime's CUDA provider, for kernels on a CPU."""
    own = [NODES / "operator.cpp", NODES / "library.cpp", NODES / "cuda" / "nodes.cpp"]
    return [*own, PLUGINS / "tests" / "onnxruntime" / "shim.cpp"]


def node_library() -> pathlib.Path:
    """A library for ONNX Runtime whose nodes launch the kernels of ``shim_library``."""
    kernels = shim_library()
    flags = (*_FLAGS, "-O0", "-fPIC", "-I", SHIM, "-isystem", find_headers())

    def fill(folder: pathlib.Path) -> None:
        command = ["g++", *flags, "-shared", "-Wl,-z,defs", *_node_sources(), kernels]
        run([*command, f"-Wl,-rpath,{kernels.parent}", "-o", folder / _NODE_LIBRARY])

    folders = (KERNELS, SHIM, NODES, NODES / "cuda", PLUGINS / "tests" / "onnxruntime")
    key = source_hash(*folders, settings=(kernels, *flags))
    return cache.entry("kernels", "nodes", key, fill) / _NODE_LIBRARY


def sanitized_node_library() -> pathlib.Path:
    """That with its own kernels, both sanitised: for a process with ``sanitizer_environment``."""
    kernels = shim_driver().parent
    flags = (*_FLAGS, *SANITIZERS, "-fPIC", "-I", SHIM, "-isystem", find_headers())

    def fill(folder: pathlib.Path) -> None:
        objects = [kernels / f"{name}.o" for name in (*UNITS, "fibres.cpp")]
        command = ["g++", *flags, "-shared", *_node_sources(), *objects]
        run([*command, "-o", folder / _NODE_LIBRARY])

    folders = (KERNELS, SHIM, NODES, NODES / "cuda", PLUGINS / "tests" / "onnxruntime")
    key = source_hash(*folders, settings=(kernels, *flags))
    return cache.entry("kernels", "nodes-sanitized", key, fill) / _NODE_LIBRARY


def sanitizer_environment() -> dict[str, str]:
    """AddressSanitizer before Python, whose own memory at the end is no leak."""
    names = ("libasan.so", "libstdc++.so")
    preload = " ".join(run(["g++", f"-print-file-name={name}"]).strip() for name in names)
    return {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}


def exported(library: pathlib.Path) -> list[str]:
    """The functions that a library has for others."""
    return [line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()]

"""The kernels as a shared library for timing, and as a program that runs jobs for checking."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rmsnorm_export.system.digest import sha256_of_all
from scripts.lib.command import ROOT

PLUGINS = ROOT / "plugins"
KERNELS = PLUGINS / "kernels"
RECORDED = "librmsnorm_recorded.so"


def source_hash() -> str:
    """Of the kernel sources: which version of them was measured."""
    return sha256_of_all(sorted(KERNELS.iterdir()), KERNELS)[:12]


def library(nvcc: str, arch: str, folder: Path) -> Path:
    """The C functions of plugins/torch/c_api.cpp for one architecture, e.g. ``90``."""
    made = folder / "librmsnorm_kernels.so"
    _link(nvcc, arch, PLUGINS / "torch" / "c_api.cpp", made, "-shared")
    return made


def driver(nvcc: str, arch: str, folder: Path) -> Path:
    """The program of plugins/tests/kernels/driver.cpp with the GPU's memory and kernels."""
    made = folder / "rmsnorm_driver"
    memory = str(PLUGINS / "tests" / "gpu")
    _link(nvcc, arch, PLUGINS / "tests" / "kernels" / "driver.cpp", made, "-I", memory)
    return made


def recorded(nvcc: str, arch: str, folder: Path) -> Path:
    """``library`` with a CUDA runtime that writes launches down instead of making them."""
    made = folder / RECORDED
    recorder = PLUGINS / "tests" / "gpu" / "recorder.cpp"
    source = PLUGINS / "torch" / "c_api.cpp"
    _link(nvcc, arch, source, made, str(recorder), "-shared", "-cudart=none")
    return made


def _link(nvcc: str, arch: str, source: Path, output: Path, *flags: str) -> None:
    """Compile the kernels, unless they lie in the folder already, and link them with ``source``."""
    code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    base = [nvcc, "-std=c++17", "-O3", "-lineinfo", code, "-I", str(KERNELS)]
    base.append("-Xcompiler=-fPIC,-Wall,-Wextra")

    def compiled(unit: Path) -> Path:
        made = output.parent / f"{unit.stem}.{arch}.o"
        if not made.exists():
            _run_compiler([*base, "-c", str(unit), "-o", str(made)])
        return made

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compiled, sorted(KERNELS.glob("*.cu"))))
    _run_compiler([*base, *flags, str(source), *map(str, objects), "-o", str(output)])


def _run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise SystemExit(f"nvcc ended with {done.returncode}: {' '.join(command)}")

"""The kernels as a shared library for timing, and as a program that runs jobs for checking."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.tools.lib.command import ROOT

PLUGINS = ROOT / "plugins"
KERNELS = PLUGINS / "kernels"
FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xcompiler=-fPIC,-Wall,-Wextra")


def source_hash() -> str:
    """Of the kernel sources: which version of them was measured."""
    digest = hashlib.sha256()
    for path in sorted(KERNELS.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


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


def compiled(nvcc: str, arch: str, unit: Path, folder: Path) -> Path:
    """The object of a unit of the kernels, unless it lies there already, and what ptxas says."""
    made = folder / f"{unit.stem}.{arch}.o"
    if not made.exists():
        command = [*_base(nvcc, arch), "-Xptxas=-v", "-c", str(unit), "-o", str(made)]
        words = _run_compiler(command)
        made.with_suffix(".ptxas").write_text(words)
    return made


def _base(nvcc: str, arch: str) -> list[str]:
    code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    return [nvcc, *FLAGS, code, "-I", str(KERNELS)]


def _link(nvcc: str, arch: str, source: Path, output: Path, *flags: str) -> None:
    """Compile the kernels, and link them with ``source``."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        units = sorted(KERNELS.glob("*.cu"))
        made = pool.map(lambda unit: compiled(nvcc, arch, unit, output.parent), units)
        objects = [str(path) for path in made]
    _run_compiler([*_base(nvcc, arch), *flags, str(source), *objects, "-o", str(output)])


def _run_compiler(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = done.stdout + done.stderr
    if done.returncode != 0:
        print(words, file=sys.stderr)
        raise SystemExit(f"nvcc ended with {done.returncode}: {' '.join(command)}")
    return words

"""The kernels as a shared library for timing, and as a program that runs jobs for checking."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
KERNELS = PLUGINS / "kernels"


def source_hash() -> str:
    """Of the kernel sources: which version of them was measured."""
    digest = hashlib.sha256()
    for path in sorted(KERNELS.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def library(nvcc: str, arch: str, folder: Path) -> Path:
    """The C functions of plugins/tests/gpu/c_api.cpp for one architecture, e.g. ``90``."""
    made = folder / "librmsnorm_kernels.so"
    _compile(nvcc, arch, [PLUGINS / "tests" / "gpu" / "c_api.cpp"], made, "-shared")
    return made


def driver(nvcc: str, arch: str, folder: Path) -> Path:
    """The program of plugins/tests/kernels/driver.cpp with the GPU's memory and kernels."""
    made = folder / "rmsnorm_driver"
    tests = PLUGINS / "tests"
    memory = str(tests / "gpu")
    _compile(nvcc, arch, [tests / "kernels" / "driver.cpp"], made, "-I", memory, "-lineinfo")
    return made


def _compile(nvcc: str, arch: str, sources: Sequence[Path], output: Path, *flags: str) -> None:
    command = [
        *(nvcc, "-std=c++17", "-O3", "-t0", f"-gencode=arch=compute_{arch},code=sm_{arch}"),
        *("-Xcompiler=-fPIC,-Wall,-Wextra", "-I", str(KERNELS), "-o", str(output), *flags),
        *(str(source) for source in [*sorted(KERNELS.glob("*.cu")), *sources]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise SystemExit(f"nvcc ended with {done.returncode}: {' '.join(command)}")

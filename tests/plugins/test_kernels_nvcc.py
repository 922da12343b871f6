"""nvcc builds every kernel for every architecture without a stack frame or a spill.

A stack frame is how a register array that is indexed at run time shows: correct, and several times
slower. It depends on the architecture, so each has to be looked at.
"""

from __future__ import annotations

import pathlib
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.corpus import cache
from tests.plugins import kernel_build

ARCHITECTURES = (80, 86, 89, 90, 100, 120)

_FLAGS = ("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-Wall,-Wextra", "-Werror", "all-warnings")
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def _reports() -> pathlib.Path:
    """A folder with what ptxas said of each unit and architecture; it takes minutes to make."""
    nvcc = kernel_build.find_nvcc()
    assert nvcc is not None
    version = kernel_build.run([nvcc, "--version"])

    def fill(folder: pathlib.Path) -> None:
        def build(unit: str, architecture: int) -> None:
            code = f"arch=compute_{architecture},code=sm_{architecture}"
            source = kernel_build.KERNELS / unit
            output = ("-cubin", "-o", folder / "kernels.cubin")
            command = [nvcc, *_FLAGS, "-gencode", code, "-Xptxas", "-v", *output, source]
            scratch = folder / f"{unit}-{architecture}"
            scratch.mkdir()
            command[command.index("-o") + 1] = scratch / "kernels.cubin"
            (folder / f"{scratch.name}.txt").write_text(kernel_build.run(command))
            (scratch / "kernels.cubin").unlink()
            scratch.rmdir()

        units = [unit for unit in kernel_build.UNITS if unit != "rmsnorm.cu"]
        with ThreadPoolExecutor(kernel_build.JOBS) as pool:
            jobs = [pool.submit(build, u, a) for u in units for a in ARCHITECTURES]
        for job in jobs:
            job.result()

    key = kernel_build.source_hash(
        kernel_build.KERNELS, settings=(version, *_FLAGS, *ARCHITECTURES)
    )
    return cache.entry("kernels", "ptxas", key, fill)


@pytest.mark.slow
@pytest.mark.skipif(
    kernel_build.find_nvcc() is None,
    reason="no nvcc in CUDA_HOME, PATH or the wheel: pip install nvidia-cuda-nvcc "
    "nvidia-cuda-runtime nvidia-cuda-cccl",
)
def test_no_stack_frame_and_no_spill() -> None:
    kernels = 0
    faults = []
    for report in sorted(_reports().glob("*.txt")):
        name = ""
        for line in report.read_text().splitlines():
            if entry := _ENTRY.search(line):
                name = f"{entry[1]} on sm_{entry[2]}"
                kernels += 1
            elif (memory := _MEMORY.search(line)) and set(memory.groups()) != {"0"}:
                faults.append(f"{name}: {memory[0]}")
    assert not faults, "\n".join(faults)
    # Of each type and architecture: 22 in registers or staged for the modes, and the generic ones.
    assert kernels >= len(ARCHITECTURES) * 3 * 26

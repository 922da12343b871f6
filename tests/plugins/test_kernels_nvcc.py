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

_FLAGS = ("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-Wall,-Wextra", "-Werror", "all-warnings")
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def _reports(architectures: tuple[int, ...]) -> list[str]:
    """What ptxas said of each unit and architecture; a minute or two for each that is new."""
    nvcc = kernel_build.find_nvcc()
    assert nvcc is not None
    version = kernel_build.run([nvcc, "--version"])

    def report(unit: str, architecture: int) -> str:
        def fill(folder: pathlib.Path) -> None:
            code = f"arch=compute_{architecture},code=sm_{architecture}"
            source, cubin = kernel_build.KERNELS / unit, folder / "kernels.cubin"
            output = ("-cubin", "-o", cubin)
            command = [nvcc, *_FLAGS, "-gencode", code, "-Xptxas", "-v", *output, source]
            (folder / "ptxas.txt").write_text(kernel_build.run(command))
            cubin.unlink()

        settings = (version, *_FLAGS, unit, architecture)
        key = kernel_build.source_hash(kernel_build.KERNELS, settings=settings)
        return (cache.entry("kernels", "ptxas", key, fill) / "ptxas.txt").read_text()

    units = [unit for unit in kernel_build.UNITS if unit != "rmsnorm.cu"]
    with ThreadPoolExecutor(kernel_build.JOBS) as pool:
        jobs = [pool.submit(report, unit, a) for a in architectures for unit in units]
    return [job.result() for job in jobs]


@pytest.mark.slow
@pytest.mark.skipif(
    kernel_build.find_nvcc() is None,
    reason="no nvcc in CUDA_HOME, PATH or the wheel: pip install nvidia-cuda-nvcc "
    "nvidia-cuda-runtime nvidia-cuda-cccl",
)
@pytest.mark.parametrize(
    "architectures",
    # Each of the first has once had what the others had not.
    [(80, 90, 120), pytest.param((86, 89, 100), marks=pytest.mark.thorough)],
)
def test_no_stack_frame_and_no_spill(architectures: tuple[int, ...]) -> None:
    kernels = 0
    faults = []
    for report in _reports(architectures):
        name = ""
        for line in report.splitlines():
            if entry := _ENTRY.search(line):
                name = f"{entry[1]} on sm_{entry[2]}"
                kernels += 1
            elif (memory := _MEMORY.search(line)) and set(memory.groups()) != {"0"}:
                faults.append(f"{name}: {memory[0]}")
    assert not faults, "\n".join(faults)
    # Of each type and architecture: 22 in registers or staged for the modes, and the generic ones;
    # and those of the usual norms, 38 of each half type and 8 of f32.
    assert kernels >= len(architectures) * (3 * 26 + 2 * 38 + 8)

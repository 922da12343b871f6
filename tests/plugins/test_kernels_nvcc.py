"""nvcc builds every kernel for every architecture without a stack frame or a spill.

A stack frame is how a register array that is indexed at run time shows: correct, and several times
slower. It depends on the architecture, so each has to be looked at.
"""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.plugins import kernel_build
from tests.sample import sampled

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

_KERNELS = {"f32": 26 + 8 + 6, "f16": 26 + 44 + 16, "bf16": 26 + 44 + 16}
"""How many a type has at least: 22 in registers or staged for the modes, and the generic ones; and
those of the usual norms, and with a rotary embedding."""

_ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 110, 120)
_ALL = [(dtype, arch) for dtype in _KERNELS for arch in _ARCHITECTURES]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        kernel_build.find_nvcc() is None,
        reason="no nvcc in CUDA_HOME, PATH or the wheel: pip install nvidia-cuda-nvcc "
        "nvidia-cuda-runtime nvidia-cuda-cccl",
    ),
]


@sampled("dtype, architecture", _ALL, {("f32", 90)})
def test_no_stack_frame_and_no_spill(dtype: str, architecture: int, tmp_path: pathlib.Path) -> None:
    (report,) = kernel_build.nvcc_objects([(f"rmsnorm_{dtype}.cu", architecture)], tmp_path)
    _judge(report, _KERNELS[dtype])


def _judge(report: str, least: int) -> None:
    assert "warning" not in report
    kernels = 0
    faults = []
    name = ""
    for line in report.splitlines():
        if entry := _ENTRY.search(line):
            name = f"{entry[1]} on sm_{entry[2]}"
            kernels += 1
        elif (memory := _MEMORY.search(line)) and set(memory.groups()) != {"0"}:
            faults.append(f"{name}: {memory[0]}")
    assert not faults, "\n".join(faults)
    assert kernels >= least

"""nvcc builds every kernel for every architecture without a stack frame or a spill.

A stack frame is how a register array that is indexed at run time shows: correct, and several times
slower. It depends on the architecture, so each has to be looked at.
"""

from __future__ import annotations

import re

import pytest

from tests.plugins import kernel_build
from tests.sample import sampled

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

_KERNELS = {"f32": 39, "f16": 64, "bf16": 64}
"""How many a type has: those of any norm, of the usual ones, and with a rotary embedding."""

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
def test_no_stack_frame_and_no_spill(dtype: str, architecture: int) -> None:
    _, report = kernel_build.nvcc_object(f"rmsnorm_{dtype}.cu", architecture)
    assert "warning" not in report
    kernels = _ENTRY.findall(report)
    faults = [one[0] for one in _MEMORY.finditer(report) if set(one.groups()) != {"0"}]
    assert not faults, (faults, report)
    assert len(kernels) == _KERNELS[dtype]

"""The instruction sets of the CPU kernels as parameters of tests, which skip what is lacking."""

from __future__ import annotations

import pathlib

import pytest

_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma", "f16c"},
}
"""What each needs of the processor, as /proc/cpuinfo has it: without it, the library would run
the next best kernels, and the test would pass."""
_PRESENT = set(pathlib.Path("/proc/cpuinfo").read_text().split())

ISAS = [
    pytest.param(isa, marks=pytest.mark.skipif(not flags <= _PRESENT, reason=f"no {isa} here"))
    for isa, flags in _FLAGS.items()
]

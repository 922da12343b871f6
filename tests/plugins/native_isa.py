"""The instruction sets of the CPU kernels as parameters of tests, which skip what is lacking."""

from __future__ import annotations

import pathlib
import platform

import pytest

_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma", "f16c"},
    "baseline": set(),
}
"""What each needs of the processor, in the words of /proc/cpuinfo."""


def _lacking(isa: str) -> set[str]:
    """Without this, the library would run the next best kernels, and the test would pass."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return _FLAGS[isa]
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "")
    return _FLAGS[isa] - set(flags.split())


ISAS = [
    pytest.param(
        isa,
        marks=pytest.mark.skipif(
            bool(_lacking(isa)),
            reason=f"this processor has no {isa}: run this on one that has it",
        ),
    )
    for isa in _FLAGS
]

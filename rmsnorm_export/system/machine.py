"""Facts on the machine: processor, memory, load; NVIDIA GPUs as ``nvidia-smi`` tells of them."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
from pathlib import Path


def cpu_name() -> str:
    """Return what the system calls the processor."""
    return _field("/proc/cpuinfo", "model name") or platform.machine()


def address_space() -> int:
    """Return how many bytes of addresses this process has; Linux alone tells."""
    return 1024 * int(_field("/proc/self/status", "VmSize").split()[0])


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """Return the size of all memory."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def load_average() -> float:
    """Return the load of the last minute."""
    return round(os.getloadavg()[0], 2)


def memory_available() -> int | None:
    """Return the bytes that the machine can still give out; None where it does not say."""
    text = _field("/proc/meminfo", "MemAvailable").split()
    return int(text[0]) * 1024 if text else None


def _field(path: str, name: str) -> str:
    """Return the value after ``name:`` in a file of the system; "" where there is none."""
    try:
        rows = (line.partition(":") for line in Path(path).read_text("utf-8").splitlines())
        return next((value.strip() for key, _, value in rows if key.strip() == name), "")
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, in the words of ``nvidia-smi``, which writes ``[N/A]`` for what it does not know.

    Attributes:
        name: e.g. ``NVIDIA H200``.
        capability: CUDA compute capability, e.g. ``9.0``.
        driver: version of the driver.
        memory: all of it, with its unit: ``143771 MiB``.
    """

    name: str
    capability: str
    driver: str
    memory: str


_TIMEOUT = 20
"""Seconds to answer; a second per GPU is usual where nothing keeps the driver loaded."""


def gpus() -> tuple[Gpu, ...]:
    """List the GPUs; () where there is none, no driver, or no answer in time."""
    query, null = "--query-gpu=name,compute_cap,driver_version,memory.total", subprocess.DEVNULL
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    try:
        answer = subprocess.check_output(command, stdin=null, stderr=null, timeout=_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ()
    # From the right: a name may hold a comma. "No devices were found" is no GPU.
    rows = (line.rsplit(",", 3) for line in answer.decode("utf-8", "replace").splitlines())
    return tuple(Gpu(*map(str.strip, row)) for row in rows if len(row) == 4)

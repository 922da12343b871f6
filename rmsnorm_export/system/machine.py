"""Facts on the machine: processor, memory, load."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor, as the system calls it."""
    return _system_field("/proc/cpuinfo", "model name") or platform.machine()


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float:
    """All memory; 0 where the system does not say."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0.0
    return round(size / 2**30, 1)


def load_average() -> float | None:
    """Of the last minute; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def memory_available() -> int | None:
    """Bytes that the machine can still give out; None where the system does not say."""
    return _kib("/proc/meminfo", "MemAvailable")


def peak_memory() -> int | None:
    """Most bytes that this process ever had resident."""
    # Not getrusage: its peak starts at that of the process that started this one.
    return _kib("/proc/self/status", "VmHWM")


def _kib(path: str, name: str) -> int | None:
    text = _system_field(path, name).split()
    return int(text[0]) * 1024 if text and text[0].isdigit() else None


def _system_field(path: str, name: str) -> str:
    """The value behind ``name:`` in a file of the system; "" where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""

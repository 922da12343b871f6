"""Facts on the machine that go with a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from rmsnorm_export.benchmark.result import Machine
from rmsnorm_export.benchmark.sessions import cores


def describe(load_before: float | None, load_after: float | None) -> Machine:
    """The machine, as far as the system tells."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        memory = 0.0
    return Machine(
        cpu=_field("/proc/cpuinfo", "model name") or platform.machine(),
        cores=cores(),
        memory_gib=round(memory, 1),
        system=platform.system(),
        python=platform.python_version(),
        load_before=load_before,
        load_after=load_after,
    )


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


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed version of each distribution; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _kib(path: str, name: str) -> int | None:
    text = _field(path, name).split()
    return int(text[0]) * 1024 if text and text[0].isdigit() else None


def _field(path: str, name: str) -> str:
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

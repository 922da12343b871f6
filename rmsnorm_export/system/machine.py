"""Facts on the machine: processor, memory, load; NVIDIA GPUs as ``nvidia-smi`` tells of them."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
from pathlib import Path

from rmsnorm_export.system.process import run_program


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


TIMEOUT = 20.0
"""Seconds to answer; a second per GPU is usual where nothing keeps the driver loaded."""

_FIELDS = ("name", "compute_cap", "driver_version", "memory.total")


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, in the words of ``nvidia-smi``, which writes ``[N/A]`` for what it does not know.

    Attributes:
        name: e.g. ``NVIDIA H200``.
        capability: CUDA compute capability, e.g. ``9.0``; "" from a driver that does not tell it
            (before 510).
        driver: version of the driver.
        memory: all of it, with its unit: ``143771 MiB``.
    """

    name: str
    capability: str
    driver: str
    memory: str


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that ``nvidia-smi`` lists, in its order.

    () without that program, without a GPU, and where it fails, as with a driver that does not fit
    its library, or does not answer within ``TIMEOUT``. It never raises.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    # One field that an old nvidia-smi does not know spoils the whole query.
    for fields in (_FIELDS, tuple(field for field in _FIELDS if field != "compute_cap")):
        query = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        try:
            done = run_program(query, TIMEOUT)
        except (OSError, subprocess.SubprocessError):
            return ()
        if done.returncode == 0:
            return tuple(_read_gpus(fields, done.stdout))
        if "is not a valid field" not in done.stdout + done.stderr:
            return ()
    return ()


def _read_gpus(fields: tuple[str, ...], text: str) -> list[Gpu]:
    """The GPUs of the lines that are of GPUs: "No devices were found" is none."""
    listed = []
    for line in text.splitlines():
        # From the right: a name may hold a comma, the other values hold none.
        values = [value.strip() for value in line.rsplit(",", len(fields) - 1)]
        if len(values) == len(fields):
            known = dict(zip(fields, values, strict=True))
            listed.append(Gpu(*(known.get(field, "") for field in _FIELDS)))
    return listed

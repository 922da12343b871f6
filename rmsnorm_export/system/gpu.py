"""The NVIDIA GPUs of this machine, as ``nvidia-smi`` tells of them: no CUDA is loaded for it."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess

from rmsnorm_export.system.process import run_program

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

"""Child processes with a clock, a memory ceiling and their peak memory.

This module and its importer load nothing large: on Linux the peak memory of a child starts at that
of the process that spawned it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from rmsnorm_export.system.process import memory_signs
from tests.tools.lib.command import module_command, module_environment


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One child process.

    Attributes:
        status: ``ok``, ``out of memory``, ``out of address space`` (the system refused to map a
            file, with memory to spare), ``time limit``, ``killed`` or ``failed``.
        detail: the signal that ended a failed child, and the line that says why.
        wall: seconds from the start of the process to its end.
        peak_mb: peak resident memory in MiB.
        result: what the child wrote to its result file; empty if it failed.
    """

    status: str
    detail: str
    wall: float
    peak_mb: float
    result: dict[str, Any]


def run_process(command: list[str], *, time_limit: float, log: Path) -> tuple[int, float, float]:
    """Run a command; returns (exit code or -signal, seconds, peak MiB). Its output goes to log."""
    with log.open("wb") as sink:
        start = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=module_environment(),
            start_new_session=True,
        )
        timer = threading.Timer(time_limit, os.killpg, (child.pid, signal.SIGKILL))
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        timer.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, wall, usage.ru_maxrss / 1024


def run_step(
    module: str,
    step: list[str],
    *,
    folder: Path,
    time_limit: float = 600.0,
    memory_limit: int = 0,
) -> Outcome:
    """Run a module of scripts/; ``RESULT`` in ``step`` stands for the JSON file of its result.

    ``memory_limit`` (bytes) is what the step limits itself to; it only serves to name a failure.
    """
    result_file, log = folder / "result.json", folder / "log.txt"
    result_file.unlink(missing_ok=True)
    arguments = [str(result_file) if text == "RESULT" else text for text in step]
    command = module_command(module, *arguments)
    code, wall, peak_mb = run_process(command, time_limit=time_limit, log=log)
    if code == 0 and result_file.exists():
        result = json.loads(result_file.read_text(encoding="utf-8"))
        return Outcome("ok", "", wall, peak_mb, result)
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    signs = memory_signs(lines)
    # Native code that does not check its allocations dies of a signal just below the ceiling.
    starved = memory_limit and code < 0 and peak_mb * 2**20 > 0.8 * memory_limit
    if wall >= time_limit:
        status = "time limit"
    elif signs and "Errno 12" in signs[-1] and peak_mb * 2**20 < 0.5 * memory_limit:
        status = "out of address space"
    elif signs or starved:
        status = "out of memory"
    elif code < 0:
        status = "killed"
    else:
        status = "failed"
    detail = signs[-1] if signs else "" if code < 0 or not lines else lines[-1]
    if code < 0:
        detail = f"{signal.Signals(-code).name} {detail}".strip()
    return Outcome(status, detail[:200], wall, peak_mb, {})

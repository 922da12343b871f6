"""A measurement in a process of its own: its seconds and its largest memory."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toolbox.command import module_environment


def report_one(run: Callable[[], object]) -> None:
    """Run a function, and print what it took on the last line.

    Its seconds, those of the processor in it and its forks, and the largest memory of one of these.
    """
    start, busy = time.perf_counter(), sum(os.times()[:4])
    run()
    gc.collect()  # ends the forks that nothing holds
    seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - busy
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mb": _peak() / 1024}))


def run_one(command: Sequence[str], limit: float) -> dict[str, Any]:
    """Return what a process that calls ``report_one`` printed, or why it failed as ``error``."""
    try:
        done = subprocess.run(
            command, env=module_environment(), capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:120]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _peak() -> int:
    """Return the most memory that this process or a fork of it had, in KiB.

    That of a fork counts what it shares with this process, as ru_maxrss does; so this process's own
    is read elsewhere, or its parent's would count.
    """
    status = Path("/proc/self/status").read_text("utf-8")
    forks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(forks, int(status.partition("VmHWM:")[2].split()[0]))

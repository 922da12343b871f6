"""The driver under compute-sanitizer, whose words go to a file: stdout has the answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.gpu import correct
from bench.gpu.machine import Machine
from toolbox.driver import Job

TOOLS = ("memcheck", "racecheck", "synccheck")
_FOUND = 99
"""The exit code that it ends with when it has found something."""


def run(
    machine: Machine, tool: str, driver: Path, jobs: Iterable[tuple[str, Job]], *, end: float
) -> correct.Correctness:
    """Judge the problems as ``correct.run`` does; what the tool finds is wrong, too."""
    sanitizer, log = machine.program("compute-sanitizer"), machine.logs / f"{tool}.log"
    if sanitizer is None:
        text = "compute-sanitizer is neither in CUDA_HOME nor on PATH"
        return correct.Correctness(wrong=[text])
    log.unlink(missing_ok=True)
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--log-file", log]
    outcome = correct.run([sanitizer, *options, driver], jobs, end=end)
    if not log.is_file():
        outcome.wrong.append(f"{sanitizer} wrote no {log}: it did not run")
    elif outcome.wrong:
        errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
        outcome.wrong.append(f"{log}: {errors[0].strip('= ') if errors else 'no error in it'}")
    return outcome

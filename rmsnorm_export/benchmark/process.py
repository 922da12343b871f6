"""A piece of work in a process of its own: with a clock, a memory ceiling, and its peak memory.

A peer's optimizer may run out of memory, never end, or delete files in its working directory; a
model may crash a runtime. None of that reaches the caller. The request goes in on stdin as JSON,
the result comes back in a file: what the work prints is its own business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import Status
from rmsnorm_export.printable import one_line

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.benchmark.worker import main; main()"
)

_NO_MEMORY = (
    "memoryerror",
    "bad_alloc",
    "unable to allocate",
    "cannot allocate memory",
    "failed to allocate",
    "memory allocation",
    "failed to map segment",
    "out of memory",
)
"""What Python, C++, NumPy, the C library, ONNX Runtime, CUDA and the loader say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended.

    Attributes:
        status: ``ok``, or what went wrong.
        detail: the line that says why, or "".
        seconds: from its start to its end.
        result: what it handed back; empty unless ``ok``.
    """

    status: Status
    detail: str
    seconds: float
    result: dict[str, Any]


def run_worker(
    request: Mapping[str, object], *, folder: Path, time_limit: float, memory_limit: int | None
) -> Ended:
    """Run one request in a new process, and wait for its end.

    Args:
        request: see ``worker``.
        folder: the process's working directory; its result and its log lie there.
        time_limit: seconds until it is killed, with all that it started.
        memory_limit: bytes that it may allocate; None: no limit.
    """
    result, log = folder / "result.json", folder / "log.txt"
    result.unlink(missing_ok=True)
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    content = dict(request) | {"result": str(result), "memory_limit": memory_limit}
    start, late = time.perf_counter(), False
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, path],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(content).encode(), timeout=time_limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _kill(process)
    seconds = time.perf_counter() - start
    if late:
        return Ended("time limit", f"after {time_limit:g} s", seconds, {})
    found: dict[str, Any] = {}
    if process.returncode == 0:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(result.read_text(encoding="utf-8"))
    if found and "error" not in found:
        return Ended("ok", "", seconds, found)
    return _failed(process.returncode, str(found.get("error", "")), log, seconds)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started, whether it ended or not."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _failed(code: int, error: str, log: Path, seconds: float) -> Ended:
    """What to say of a process: its error if it could still tell, else its last words."""
    text = error or log.read_text(encoding="utf-8", errors="replace")[-65536:]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    signs = [line for line in lines if any(sign in line.lower() for sign in _NO_MEMORY)]
    said = signs[-1] if signs else " ".join(lines[:3]) if error else lines[-1] if lines else ""
    name = ""
    if code < 0:
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
    detail = one_line(": ".join(filter(None, (name, said))), 300)
    status: Status = "out of memory" if signs else "killed" if code < 0 else "failed"
    return Ended(status, detail, seconds, {})

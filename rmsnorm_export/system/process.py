"""A function of this package in a Python process of its own.

What a child does to itself (crash, hang, use up the memory, print what it likes), it does not do to
the caller. It has the caller's module path; request and answer are JSON in temporary files; it
leads a process group, which ends with it, and ends itself when the caller is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from rmsnorm_export.system.late import sympy_when_used

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.system.process import serve; serve(sys.argv[2])"
)

_TAIL = 1 << 16
"""Bytes of the last words of a child that are kept."""

_PARENT_DEATH_SIGNAL = 1
"""Of prctl, see linux/prctl.h."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """End of a child.

    Attributes:
        result: what the function returned; None where it did not come to that.
        code: exit code; negative: the signal that ended it; None: its time was over.
        tail: what it printed last.
        seconds: from its start to its end.
    """

    result: dict[str, Any] | None
    code: int | None
    tail: str
    seconds: float = 0.0

    def how(self) -> str:
        """Say how it ended."""
        if self.code is None:
            return f"the process did not end within {self.seconds:.0f} s"
        if self.code < 0:
            names = {int(one): one.name for one in signal.Signals}
            return f"the process was ended by {names.get(-self.code, f'signal {-self.code}')}"
        return f"the process ended with exit code {self.code}"

    def last_line(self) -> str:
        """Return the last line that it printed; "" without one."""
        return next((line for line in reversed(self.tail.splitlines()) if line.strip()), "").strip()


def ask(
    function: str,
    request: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> Ended:
    """Call a function of this package in a new process, and wait for its end.

    Args:
        function: ``module:name`` of what takes the request and returns a dictionary.
        request: for it, of what JSON has.
        environment: variables beside those of this process.
        time_limit: seconds until the child is ended, with all that it started.
    """
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    start = time.perf_counter()
    with contextlib.ExitStack() as open_files:
        files = (open_files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        question, answer, words = files
        question.write(json.dumps(request).encode())
        question.seek(0)
        command = [sys.executable, "-I", "-c", _CODE, path, function]
        env = os.environ | dict(environment or {})
        process = subprocess.Popen(
            command, stdin=question, stdout=answer, stderr=words, env=env, start_new_session=True
        )
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(time_limit)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            process.wait()
        answer.seek(0)
        result = None
        with contextlib.suppress(ValueError):  # nothing, or cut off where it died
            result = json.loads(answer.read())
        words.seek(max(0, words.seek(0, os.SEEK_END) - _TAIL))
        tail = words.read().decode("utf-8", "backslashreplace")
    return Ended(result, code, tail, time.perf_counter() - start)


def serve(function: str) -> None:
    """Call a function with the request on stdin, in the child; an exception is printed."""
    import ctypes  # --help needs none

    with contextlib.suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    sympy_when_used()
    request = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(request)
    with os.fdopen(out, "w", encoding="utf-8") as answer:
        json.dump(result, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of C++ libraries may crash; nothing is left for them to do

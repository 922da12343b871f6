"""Native code in a process of its own: what crashes there is a finding here.

The child has the caller's module path, reads its request from stdin, and leaves its answer in a
file, as JSON. What it prints is kept for the error of one that dies.
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
from pathlib import Path
from typing import Any

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.tensorrt.child import answer_request; answer_request(*sys.argv[2:])"
)
_TAIL = 1 << 16
"""Bytes of what a child printed that are kept."""

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """How a child ended.

    Attributes:
        result: what the function returned; None where it did not come to that.
        ending: in words, e.g. ``the process was ended by SIGSEGV``.
        printed: what it printed last.
        seconds: from its start to its end.
    """

    result: dict[str, Any] | None
    ending: str
    printed: str
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line that it printed; "" without one."""
        lines = [line.strip() for line in self.printed.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def ask(
    function: str,
    request: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> Answer:
    """Call a function of this package in a new process, and wait for its end.

    Args:
        function: ``module:name`` of what takes the request and returns a dictionary.
        request: for it, of what JSON has.
        environment: variables beside those of this process.
        time_limit: seconds until the child is ended.
    """
    start = time.perf_counter()
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    with tempfile.TemporaryDirectory(prefix="rmsnorm-child-") as folder:
        answer, words = Path(folder) / "answer.json", Path(folder) / "words"
        try:
            with words.open("wb") as printed:
                done = subprocess.run(
                    [sys.executable, "-Iu", "-c", _CODE, path, function, str(answer)],
                    input=json.dumps(request).encode(),
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    env=os.environ | dict(environment or {}),
                    timeout=time_limit,
                    check=False,
                )
            ending = _ending(done.returncode)
        except subprocess.TimeoutExpired:
            ending = f"the process did not end within {time_limit:g} s"
        result = None
        with contextlib.suppress(OSError, ValueError):
            result = json.loads(answer.read_bytes())
        with words.open("rb") as tail:
            tail.seek(max(0, words.stat().st_size - _TAIL))
            text = tail.read().decode("utf-8", "backslashreplace")
    return Answer(result, ending, text, time.perf_counter() - start)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process was ended by signal {-code}"


def answer_request(function: str, answer: str) -> None:
    """Answer the request on stdin, in the child, and end."""
    end_with_the_caller()
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(json.load(sys.stdin))
    Path(answer).write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of C++ libraries may crash; nothing is left for them to do


def end_with_the_caller() -> None:
    """End this process when the thread that started it ends, killed or not, where Linux is."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

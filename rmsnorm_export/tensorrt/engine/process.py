"""A backend in a process of its own: what it does to itself, it does not do to the caller.

The parser and the builder are C++ that may abort, and Polygraphy reads once, at its import, which
backend it is to use. The request goes in on stdin as one line of JSON; stdin stays open for as long
as the caller lives, so that an orphan ends. Events come out on stdout, one a line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from rmsnorm_export.printable import one_line
from rmsnorm_export.tensorrt.engine.backends import BackendInfo

Event = dict[str, Any]

CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.tensorrt.engine.worker import main; main()"
)
_TAIL = 4096
"""Bytes of the process's last words that are kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended.

    Attributes:
        events: all but those of progress, in order.
        code: exit code; negative: the signal that ended it.
        tail: what it printed last.
    """

    events: tuple[Event, ...]
    code: int
    tail: str

    def first(self, kind: str) -> Event | None:
        """The first event of this kind."""
        return next((event for event in self.events if event.get("event") == kind), None)

    def all(self, kind: str) -> list[Event]:
        """Every event of this kind."""
        return [event for event in self.events if event.get("event") == kind]

    def cause(self) -> str:
        """How it died, for people: the signal or exit code, and its last line."""
        if self.code < 0:
            name = f"signal {-self.code}"
            with contextlib.suppress(ValueError):
                name = signal.Signals(-self.code).name
            how = f"the process was ended by {name}"
        else:
            how = f"the process ended with exit code {self.code}"
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return f"{how}{': ' + one_line(lines[-1], 400) if lines else ''}"


def run_worker(
    request: Mapping[str, object],
    info: BackendInfo,
    on_progress: Callable[[Event], None] | None = None,
) -> Ended:
    """Run one request in a new process, and wait for its end.

    Args:
        request: ``command`` and its arguments, see ``worker``.
        info: the backend; Polygraphy is told which.
        on_progress: called with every event of progress.
    """
    rtx = "1" if info.name == "tensorrt-rtx" else "0"
    environment = dict(os.environ) | {
        "POLYGRAPHY_USE_TENSORRT_RTX": rtx,
        "POLYGRAPHY_AUTOINSTALL_DEPS": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    command = [sys.executable, "-I", "-c", CODE, path]
    events: list[Event] = []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it died at once: its end says why
                process.stdin.write(json.dumps(dict(request) | {"module": info.module}) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                event = _event(line)
                if event is None:
                    continue
                if event.get("event") == "progress":
                    if on_progress is not None:
                        on_progress(event)
                else:
                    events.append(event)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - _TAIL))
        tail = errors.read().decode("utf-8", "backslashreplace")
    return Ended(tuple(events), code, tail)


def _event(line: str) -> Event | None:
    """An event; None for a line that is none (the last may be cut where the process died)."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None

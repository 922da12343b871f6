"""Other processes: a program that is asked for a few lines, and this Python in a child of its own.

What a child does to itself (crash, hang, use up the memory, print what it likes), it does not do to
the caller. It has the caller's module path; its request goes in on stdin as one line of JSON, its
events come out on stdout, one JSON object a line; stdin stays open for as long as the caller lives,
so that an orphan ends. It leads a process group, which ends with it.
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
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.system.late import sympy_when_used
from rmsnorm_export.system.progress import Progress

Event = dict[str, Any]
Request = dict[str, Any]

Say = Callable[..., None]
"""``say("stage", name="parse")`` tells the caller of one event, at once, from any thread."""

CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.system.process import serve; serve(*sys.argv[2:])"
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
"""What Python, C++, NumPy, OpenBLAS, the C library, ONNX Runtime, CUDA and the loader say."""

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL

_TAIL = 1 << 16
"""Bytes of the last words of a child that are kept."""

FILE_LIMIT = 64 << 30
"""Bytes that a child with a memory limit may write to one file: a sparse model, copied, would fill
a disk."""


def run_program(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """What a program prints that reads nothing and ends within ``timeout`` seconds.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it was ended.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def memory_signs(lines: Iterable[str]) -> list[str]:
    """The lines that say that there was no memory left."""
    return [line for line in lines if any(sign in line.lower() for sign in _NO_MEMORY)]


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        events: all but those of progress, in order.
        code: exit code; negative: the signal that ended it; None: its time was over.
        tail: what it printed last.
        seconds: from its start to its end.
    """

    events: tuple[Event, ...]
    code: int | None
    tail: str
    seconds: float = 0.0

    def first(self, kind: str) -> Event | None:
        """The first event of this kind."""
        return next((event for event in self.events if event.get("event") == kind), None)

    def all(self, kind: str) -> list[Event]:
        """Every event of this kind."""
        return [event for event in self.events if event.get("event") == kind]

    def signal_name(self) -> str:
        """``SIGSEGV``; "" where no signal ended it."""
        if self.code is None or self.code >= 0:
            return ""
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"

    @property
    def result(self) -> dict[str, Any] | None:
        """What the function of ``ask`` returned; None where it did not come to that."""
        answer = self.first("answer")
        return None if answer is None else dict(answer["result"])

    def how(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return f"the process did not end within {self.seconds:.0f} s"
        if name := self.signal_name():
            return f"the process was ended by {name}"
        return f"the process ended with exit code {self.code}"

    def last_line(self) -> str:
        """The last line that it printed; "" without one."""
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
        time_limit: seconds until the child is ended.
    """
    whole = {"function": function, "request": request}
    target = f"{__name__}:answer"
    return Child(target, whole, environment=environment, time_limit=time_limit).end()


def answer(request: Request, say: Say) -> None:
    """Call the function of ``ask``, in the child."""
    say("answer", result=_named(request["function"])(request["request"]))


def _named(target: str) -> Callable[..., Any]:
    """Return the function ``module:name``."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


class Child:
    """A function of this package at work in a new process.

    Args:
        target: ``module:function`` of what is called there with the request and ``say``.
        request: for it.
        time_limit: seconds until the child is ended, with all that it started.
        memory_limit: bytes that it may allocate.
        folder: its working directory.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        target: str,
        request: Mapping[str, object],
        *,
        time_limit: float | None = None,
        memory_limit: int | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        self._start = time.perf_counter()
        self._late = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - ``end`` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", CODE, path, target, str(memory_limit or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            cwd=folder,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
        self._watch = threading.Thread(target=self._wait, args=(time_limit,), daemon=True)
        self._watch.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its end says why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _wait(self, time_limit: float | None) -> None:
        """End what the child leaves behind, which may hold its stdout open; and a late child."""
        try:
            self._process.wait(time_limit)
        except subprocess.TimeoutExpired:
            self._late = True
        end_group(self._process)

    def end(self, progress: Progress | None = None) -> Ended:
        """Wait for the end of the child.

        Args:
            progress: called with phase, done and total of every event of the kind ``progress``.
        """
        process, events = self._process, []
        assert process.stdin is not None
        assert process.stdout is not None
        with self._words as words:
            try:
                for line in process.stdout:
                    event = _read_event(line)
                    if event is None:
                        continue
                    if event.get("event") != "progress":
                        events.append(event)
                    elif progress is not None:
                        progress(event["phase"], event["done"], event["total"])
                self._watch.join()
            finally:
                end_group(process)
                for stream in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        stream.close()
            size = words.seek(0, os.SEEK_END)
            words.seek(max(0, size - _TAIL))
            tail = words.read().decode("utf-8", "backslashreplace")
        code = None if self._late else process.returncode
        return Ended(tuple(events), code, tail, time.perf_counter() - self._start)


def end_group(process: subprocess.Popen[Any], number: int = _KILL) -> None:
    """Send a signal to a process that leads a group and to all that it started; wait for it.

    Args:
        process: whether it ended already or not.
        number: of the signal; where there are no groups, the process is ended.
    """
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    else:
        process.kill()
    process.wait()


def _read_event(line: bytes) -> Event | None:
    """An event; None for a line that is none (the last may be cut where the process died)."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def serve(target: str, memory_limit: str) -> None:
    """In the child: call ``target`` with the request on stdin, and end; see ``Child``.

    An exception of the function is printed, and ends the process with exit code 1.
    """
    caller = os.dup(0)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(caller, encoding="utf-8", closefd=False) as requests:
        request = json.loads(requests.readline())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # whatever else is printed is no event
    threading.Thread(target=end_with, args=(caller,), daemon=True).start()
    sympy_when_used()
    if memory_limit:
        _limit_memory(int(memory_limit))
    lock = threading.Lock()

    def say(event: str, **values: object) -> None:
        line = json.dumps({"event": event} | values)
        with lock:
            print(line, file=out, flush=True)

    _named(target)(request, say)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of C++ libraries may crash; nothing is left for them to do


def end_with(caller: int) -> None:
    """End this process when the caller is gone: its end of the pipe closes."""
    while os.read(caller, 1024):
        pass
    os._exit(1)


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    # RLIMIT_DATA counts what is allocated; RLIMIT_AS would also count a mapped weights file.
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))

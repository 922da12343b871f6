"""A function of this package in a Python process of its own.

What a child does to itself (crash, hang, use up the memory, print what it likes), it does not do to
the caller. A new one (`ask`) has the caller's module path; request and answer are JSON in temporary
files; it leads a process group, which ends with it, and ends itself when the caller is gone. A
`Fork` starts in a few milliseconds with all that the caller has, and answers any number of calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmsnorm_export.system.lazy import sympy_when_used
from rmsnorm_export.system.machine import address_space

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
        code: exit code; negative: the signal that ended it.
        tail: what it printed last.
        seconds: from its start to its end.
    """

    result: dict[str, Any] | None
    code: int
    tail: str
    seconds: float = 0.0

    def how(self) -> str:
        """Say how it ended."""
        return how_ended(self.code)

    def last_line(self) -> str:
        """Return the last line that it printed; "" without one."""
        return next((line for line in reversed(self.tail.splitlines()) if line.strip()), "").strip()


def how_ended(code: int | None) -> str:
    """Say how a process ended.

    Args:
        code: exit code; negative: the signal that ended it; None: not known.
    """
    if code is not None and code < 0:
        return f"the process was ended by {signal_name(-code)}"
    return "the process ended" + ("" if code is None else f" with exit code {code}")


def signal_name(number: int) -> str:
    """Return, for example, ``SIGSEGV``."""
    names = {int(one): one.name for one in signal.Signals}
    return names.get(number, f"signal {number}")


class ForkEndedError(Exception):
    """A fork ended before it answered.

    Attributes:
        code: exit code; negative: the signal that ended it; None: somebody else has waited for it.
    """

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class _RaisedInForkError(Exception):
    """Cause of an exception of a fork: its traceback there, as text, for ``--debug``."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Fork:
    """A function that is made in a fork of this process, and called there.

    Arguments, answers and exceptions are pickled. The fork ends with this object.

    Args:
        make: returns the function, in the fork.

    Raises:
        ForkEndedError: the fork ended, now or in a call.
        Exception: what ``make`` or the function raises there.
    """

    _code: int | None

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        from multiprocessing import Pipe  # --help needs none

        here, there = Pipe()
        in_main = threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings():
            # Of threads: those of a runtime wait for work, and a fork starts its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            if in_main:  # the system calls the end of any other thread that of the caller
                _end_with_caller()
            here.close()
            _answer(make, there)
        there.close()
        _open_forks.add(here)
        self._connection, self._code = here, None
        self._end = weakref.finalize(self, _end_fork, os.getpid(), pid, here)
        try:
            self._receive()
        except BaseException:
            self._end()
            raise

    def __call__(self, *arguments: Any) -> Any:
        return self.begin(*arguments)()

    def begin(self, *arguments: Any) -> Callable[[], Any]:
        """Begin a call, and return what waits for its answer."""
        with contextlib.suppress(OSError):  # it is gone: there is nothing to receive, either
            self._connection.send(arguments)
        return self._receive

    @property
    def ended(self) -> bool:
        """Return whether it answers no more."""
        return not self._end.alive

    def _receive(self) -> Any:
        try:
            traceback_there, answer = self._connection.recv()
        except (EOFError, OSError):
            if not self.ended:
                self._code = self._end()
            raise ForkEndedError(self._code) from None
        if traceback_there:
            raise answer from _RaisedInForkError(traceback_there)
        return answer


@contextlib.contextmanager
def limits(memory: int, seconds: int) -> Iterator[None]:
    """Let this process allocate so many bytes more, and take so much time of the processor in all.

    A library that asks for more memory raises, and one that takes more time is ended by SIGXCPU.
    Linux alone has both limits.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    bounds = {
        resource.RLIMIT_AS: address_space() + memory,
        resource.RLIMIT_CPU: int(time.process_time()) + seconds,
    }
    before = {kind: resource.getrlimit(kind) for kind in bounds}
    for kind, (soft, hard) in before.items():
        least = bounds[kind] if soft == resource.RLIM_INFINITY else min(bounds[kind], soft)
        resource.setrlimit(kind, (least, hard))
    try:
        yield
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)


_open_forks: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The ends here: a fork that had those of another one would keep it from seeing its end."""


def _answer(make: Callable[[], Callable[..., Any]], connection: Connection) -> None:
    """Answer calls until the other end is closed, in the fork."""
    try:
        # Sessions that the caller still has wait for their threads when they end, and those are not
        # here: nothing of the caller's is collected.
        gc.freeze()
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its caller
        for other in _open_forks:
            other.close()
        function: Callable[..., Any] | None = None
        arguments: tuple[Any, ...] = ()
        while True:
            try:
                answer = None
                if function is None:
                    function = make()
                else:
                    answer = function(*arguments)
            except Exception as error:
                connection.send((traceback.format_exc(), error))
            else:
                connection.send(("", answer))
            arguments = connection.recv()
    finally:
        os._exit(0)  # nothing of the caller's is cleaned up twice


def _end_fork(owner: int, pid: int, connection: Connection) -> int | None:
    """End a fork if this process started it; return its exit code."""
    if os.getpid() != owner:
        return None
    connection.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None


def ask(
    function: str, request: Mapping[str, object], *, environment: Mapping[str, str] | None = None
) -> Ended:
    """Call a function of this package in a new process, and wait for its end.

    Args:
        function: ``module:name`` of what takes the request and returns a dictionary.
        request: for it, of what JSON has.
        environment: variables beside those of this process.
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
        try:
            code = process.wait()
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
    _end_with_caller()
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


def _end_with_caller() -> None:
    """Let the system end this process with the thread that started it, whatever it does then."""
    import ctypes  # --help needs none

    with contextlib.suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)

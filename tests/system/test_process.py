"""Functions in a child: their answers, their limits, and how their end is told."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.process import Fork, ForkEndedError, ask, limits

Request = dict[str, Any]


def echo(request: Request) -> Request:
    """Print something, and answer with the request and what else is on stdin."""
    print("noise")
    return request | {"stdin": sys.stdin.read()}


def fail(request: Request) -> Request:
    """Raise."""
    raise ValueError(request["text"])


def die(request: Request) -> Request:
    """End by a signal."""
    os.kill(os.getpid(), request["signal"])
    return {}


def leave_a_child(request: Request) -> Request:
    """Start a process that would outlive this one by far, and wait with it or not."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    Path(request["file"]).write_text(f"{os.getpid()} {pid}")
    if request["wait"]:
        os.waitpid(pid, 0)
    return {}


def is_gone(pid: int) -> bool:
    """Wait until a process has ended, a zombie that nobody waits for included."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(200):
        with contextlib.suppress(FileNotFoundError):
            if "State:\tZ" not in status.read_text():
                time.sleep(0.05)
                continue
        return True
    return False


@pytest.mark.parametrize(
    ("function", "request_", "result", "code", "last", "how"),
    [
        ("echo", {"a": "\u2028 ä"}, {"a": "\u2028 ä", "stdin": ""}, 0, "noise", "exit code 0"),
        ("fail", {"text": "no such"}, None, 1, "ValueError: no such", "exit code 1"),
        ("die", {"signal": signal.SIGSEGV}, None, -11, "", "ended by SIGSEGV"),
    ],
)
def test_an_answer_or_its_last_words(
    function: str, request_: Request, result: object, code: int, last: str, how: str
) -> None:
    ended = ask(f"{__name__}:{function}", request_)
    assert (ended.result, ended.code, ended.last_line()) == (result, code, last)
    assert how in ended.how()


def test_nothing_outlives_it(tmp_path: Path) -> None:
    request = {"wait": False, "file": str(tmp_path / "pids")}
    ended = ask(f"{__name__}:leave_a_child", request)
    assert (ended.code, ended.seconds < 30) == (0, True)
    assert all(map(is_gone, map(int, (tmp_path / "pids").read_text().split())))


def test_it_ends_with_its_caller(tmp_path: Path) -> None:
    place = tmp_path / "pids"
    code = "import sys; from rmsnorm_export.system.process import ask;"
    code += f" sys.path[:] = {sys.path}; ask('{__name__}:leave_a_child', "
    code += f"dict(wait=True, file={str(place)!r}))"
    caller = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(400):
        if place.exists() and len(place.read_text().split()) == 2:
            break
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    child, grandchild = map(int, place.read_text().split())
    assert is_gone(child)
    os.kill(grandchild, signal.SIGKILL)


def refuse(text: str) -> None:
    """Raise an error of this package."""
    raise InputError("No.", found=text, fix="none")


def test_a_fork_answers_and_raises_as_often_as_it_is_called() -> None:
    held = [1]
    fork = Fork(lambda: lambda function, *arguments: function(*arguments))
    assert fork(pow, 2, 5) == 32
    with pytest.raises(InputError) as error:
        fork(refuse, "again")
    assert (error.value.what, error.value.found, error.value.fix) == ("No.", "again", "none")
    assert fork(os.getpid) not in (os.getpid(), fork(os.getppid))
    assert Fork(lambda: held.copy)() == held
    assert not fork.ended


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_the_end_of_a_fork_is_an_exception(number: int) -> None:
    def kill() -> None:
        os.kill(os.getpid(), number)

    fork = Fork(lambda: kill)
    for _ in range(2):  # it does not answer later, either
        with pytest.raises(ForkEndedError) as error:
            fork()
        assert (error.value.code, fork.ended) == (-number, True)
    with pytest.raises(ForkEndedError) as error:
        Fork(kill)  # type: ignore[arg-type]
    assert error.value.code == -number
    with pytest.raises(ForkEndedError) as error:
        Fork(lambda: lambda: os._exit(3))()
    assert error.value.code == 3


def test_forks_end_with_their_object_and_with_their_caller(tmp_path: Path) -> None:
    forks = [Fork(lambda: os.getpid) for _ in range(3)]
    pids = [fork() for fork in forks]
    del forks
    assert all(map(is_gone, pids))
    place = tmp_path / "pids"
    code = "import os, pathlib, time; from rmsnorm_export.system.process import Fork;"
    code += " forks = [Fork(lambda: lambda call, *given: call(*given)) for _ in range(3)];"
    code += " pids = ' '.join(str(fork(os.getpid)) for fork in forks);"
    code += f" pathlib.Path({str(place)!r}).write_text(pids); forks[1](time.sleep, 60)"  # is busy
    caller = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(400):
        if place.exists() and len(place.read_text().split()) == 3:
            break
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    assert all(map(is_gone, map(int, place.read_text().split())))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has the limits")
def test_limits_of_memory_and_time_hold_where_they_are_set() -> None:
    def limited(function: Any) -> Any:
        with limits(memory=2**28, seconds=1):
            return function()

    fork = Fork(lambda: limited)
    assert len(fork(partial(bytes, 2**20))) == 2**20
    with pytest.raises(MemoryError):
        fork(partial(bytes, 2**29))
    with pytest.raises(ForkEndedError) as error:
        fork(partial(sum, itertools.count()))
    assert error.value.code == -signal.SIGXCPU

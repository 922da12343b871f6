"""Functions in a child: their answers, their limits, and how their end is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.system.process import ask

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


@pytest.mark.parametrize("wait", [False, True])
def test_nothing_outlives_it(wait: bool, tmp_path: Path) -> None:
    request = {"wait": wait, "file": str(tmp_path / "pids")}
    ended = ask(f"{__name__}:leave_a_child", request, time_limit=5.0 if wait else 60.0)
    assert ended.code == (None if wait else 0)
    assert ended.seconds < 30
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

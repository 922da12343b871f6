"""Children: their events, their limits, and how their end is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from rmsnorm_export.system.process import Child, Request, Say


def echo(request: Request, say: Say) -> None:
    """Tell of the request, the working directory, and what is on stdin."""
    print("noise")
    say("echo", **request, folder=os.getcwd(), stdin=sys.stdin.read())


def fail(request: Request, say: Say) -> None:
    """Tell something and raise."""
    say("begun")
    raise ValueError(request["text"])


def leave_a_child(request: Request, say: Say) -> None:
    """Start a process that would outlive this one by far, and wait with it or not."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    say("grandchild", pid=pid)
    if request["wait"]:
        os.waitpid(pid, 0)


def allocate(request: Request, say: Say) -> None:
    """Use so many bytes."""
    bytearray(request["size"])
    say("allocated")


def _child(name: str, request: dict[str, object], **options: object) -> Child:
    return Child(f"{__name__}:{name}", request, **options)  # type: ignore[arg-type]


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, a zombie that nobody waits for included."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_request_and_its_answer(tmp_path: Path) -> None:
    ended = _child("echo", {"text": "\u2028 ä", "n": 1}, folder=tmp_path).end()
    (event,) = ended.events
    expected = {"text": "\u2028 ä", "n": 1, "folder": str(tmp_path), "stdin": ""}
    assert event == {"event": "echo"} | expected
    assert (ended.code, ended.last_line(), ended.signal_name()) == (0, "noise", "")


def test_an_exception_is_its_last_words() -> None:
    ended = _child("fail", {"text": "no such thing"}).end()
    assert ended.first("begun") is not None
    assert (ended.code, ended.last_line()) == (1, "ValueError: no such thing")
    assert ended.how() == "the process ended with exit code 1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("wait", [False, True])
def test_nothing_outlives_it(wait: bool) -> None:
    ended = _child("leave_a_child", {"wait": wait}, time_limit=3.0 if wait else 60.0).end()
    event = ended.first("grandchild")
    assert event is not None
    assert ended.code == (None if wait else 0)
    assert ended.seconds < 30
    assert _is_gone(event["pid"])


def test_a_memory_limit() -> None:
    limited = _child("allocate", {"size": 1 << 32}, memory_limit=1 << 30).end()
    assert "MemoryError" in limited.last_line()
    assert _child("allocate", {"size": 1 << 20}, memory_limit=1 << 30).end().code == 0

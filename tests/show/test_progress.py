"""Long work says how far it is: to a terminal or who asks, and to nobody else."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL

SCRIPT = """
import sys
import onnx.parser
import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL
model = onnx.parser.parse_model(_MODEL)
rx.optimize(model, prove=True, progress=False)
print("now", file=sys.stderr)
rx.optimize(model, prove=True)
"""


def test_a_terminal_sees_a_bar_unless_it_is_turned_off() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("NO_COLOR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], stderr=theirs, env=env, check=False)
    os.close(theirs)
    assert done.returncode == 0
    written = b""
    with contextlib.suppress(OSError):  # how Linux ends a terminal
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    before, _, after = written.decode().partition("now")
    assert before == ""
    assert "Proving" in after


def test_who_asks_is_told_and_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    model, told = onnx.parser.parse_model(_MODEL), []
    rx.optimize(model, prove=True)
    rx.optimize(model, prove=True, progress=lambda *step: told.append(step))
    assert told == [("proving", 0, 1), ("proving", 1, 1)]
    assert capfd.readouterr() == ("", "")

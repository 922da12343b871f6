"""Long work says how far it is: to a terminal, a notebook or who asks, and to nobody else."""

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
from rmsnorm_export.system import progress

SCRIPT = """
import os, sys
import onnx.parser
import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL
model = onnx.parser.parse_model(_MODEL)
rx.optimize(model, prove=True, progress=False)
os.environ["RMSNORM_EXPORT_PROGRESS"] = "0"
rx.optimize(model, prove=True)
del os.environ["RMSNORM_EXPORT_PROGRESS"]
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


def test_a_notebook_sees_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def show(bar: progress._NotebookBar, text: str) -> None:
        shown.append(text)
        bar.handle = bar

    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(progress._NotebookBar, "_show", show)
    rx.optimize(onnx.parser.parse_model(_MODEL), prove=True)
    assert "Proving: 0 of 1" in shown[0]
    assert "<progress" in shown[0]
    assert shown[-1] == ""

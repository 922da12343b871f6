"""What only a real process shows: a light start, terminals, pipes, signals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

PROGRAM = [sys.executable, "-m", "rmsnorm_export"]
HEAVY = (
    "numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "torch", "ml_dtypes", "logging", "ctypes",
    "tensorrt", "tensorrt_rtx", "polygraphy", "jinja2", "rmsnorm_export.tensorrt.plugin",
)  # fmt: skip
COMMANDS = ("", "optimize", "inspect", "verify", "export", "build", "doctor", "plugin")


def test_help_loads_nothing_but_click() -> None:
    code = (
        "import sys\nfrom rmsnorm_export.cli.main import main\n"
        f"for name in {COMMANDS!r}:\n    assert main([*name.split(), '--help']) == 0\n"
        f"print('loaded', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage: rmsnorm-export") == len(COMMANDS)
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize("arguments", [["optimize", "three.onnx", "-o", "-"], ["inspect", "-"]])
def test_no_model_is_written_to_or_read_from_a_terminal(three: Path, arguments: list[str]) -> None:
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen([*PROGRAM, *arguments], **streams, cwd=three.parent)
    os.close(slave)
    assert process.wait(timeout=60) == 2
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "error: " in shown
    assert "terminal" in shown


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "arguments", [["inspect", "three.onnx"], ["optimize", "three.onnx", "-o", "-"], ["inspect"]]
)
def test_a_reader_that_goes_away(three: Path, arguments: list[str], as_json: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, *arguments, *(["--format", "json"] if as_json else [])],
        cwd=three.parent,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    wrong = arguments == ["inspect"]
    assert done.returncode == (2 if wrong and not as_json else 141)
    assert done.stderr.startswith(b"error: ") if wrong else done.stderr == b""


INTERRUPTED = """
import os, signal
from rmsnorm_export import api
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
api.optimize = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c(three: Path) -> None:
    arguments = ("optimize", "three.onnx", "-o", "out.onnx", "--format", "json")
    done = warm.run(INTERRUPTED + warm.COMMAND, *arguments, folder=three.parent)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert [path.name for path in three.parent.iterdir()] == ["three.onnx"]

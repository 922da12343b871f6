"""What only a real process shows: a light start, terminals, pipes, signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_ctrl_c(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "optimize", "-", "-o", "out.onnx"],
        cwd=tmp_path,
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What was started in the background ignores the signal, and its children do.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(reader)
    # It reads stdin for as long as the pipe is open; before that, Python itself starts.
    place, end = Path(f"/proc/{process.pid}/wchan"), time.monotonic() + 120
    while "pipe" not in place.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []

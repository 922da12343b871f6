"""What only a real process shows: a light start, terminals, pipes, signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm
from tests.deploy.pipelines import EXPORT, OPTIMIZE, document, write

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


def interrupted(process: subprocess.Popen[str] | warm.Process, ready: Callable[[], bool]) -> None:
    """Send SIGINT once the program is where it should be."""
    end = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)


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
    # it reads stdin for as long as the pipe is open; before that, Python itself starts
    interrupted(process, lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text())
    out, err = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
def test_ctrl_c_in_a_pipeline(tmp_path: Path) -> None:
    path = write(tmp_path, EXPORT, OPTIMIZE)
    started = tmp_path / "started"
    slow = f"import pathlib, time\ndef make():\n    pathlib.Path({str(started)!r}).touch()\n"
    (tmp_path / "factory.py").write_text(slow + "    time.sleep(600)\n")
    default = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    told = tmp_path / "told"
    with told.open("w") as stream, open(os.devnull) as nothing:
        process = warm.start(
            default + warm.COMMAND, "deploy", path, "--format", "json",
            streams=[nothing.fileno(), stream.fileno(), stream.fileno()], imports=warm.EXPORT,
        )  # fmt: skip
    interrupted(process, started.exists)
    assert (process.wait(60), told.read_text()) == (130, "interrupted\n")
    written = document(tmp_path / "out")
    assert [step["state"] for step in written["steps"]] == ["failed", "not run"]
    assert (written["exit_code"], written["steps"][0]["failure"]["exit_code"]) == (130, 130)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".lock", "pipeline.json", "deploy.json"}

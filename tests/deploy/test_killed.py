"""A run that is killed or interrupted: what it leaves, and that the next run works."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import rmsnorm_export as rx
from tests import warm
from tests.deploy.pipelines import document, states, write

PROGRAM = """
import os, signal, sys
import rmsnorm_export as rx

# What was started in the background ignores Ctrl-C, and its children do.
signal.signal(signal.SIGINT, signal.default_int_handler)

def progress(what, done, total):
    if f"{what} {done}".startswith(sys.argv[2]):
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))

deployment = rx.run_pipeline(sys.argv[1], progress=progress)
sys.exit(deployment.exit_code)
"""


def killed(path: Path, at: str) -> None:
    """A run in a process of its own that kills itself when its progress says ``at``."""
    done = warm.run(PROGRAM, path, at, "SIGKILL")
    assert done.returncode == -signal.SIGKILL, f"{at}: {done.returncode} {done.stderr}"


def test_a_killed_run_leaves_whole_steps_and_the_next_tidies_up(tmp_path: Path) -> None:
    """The kill is in the middle of a step's work, or when its outputs are about to appear."""
    path, out = write(tmp_path, "model", "proved", "verify", "package"), tmp_path / "out"
    for point in (
        "optimize: proving 1",
        "optimize: putting it into place",
        "verify: comparing",
        "package: putting it into place 2",  # about to appear in the repository
        "package: putting it into place 1",  # in the repository
    ):
        step = point.partition(":")[0]
        killed(path, point)
        assert not (out / step).exists()
        assert list(out.glob(f".{step}.*.tmp")), f"{point}: it was killed too early"
    done = rx.run_pipeline(path)
    assert set(states(done).values()) == {"done"}, done.steps
    assert not list(out.glob(".*.tmp"))
    served = out / "repository/net/1/model.onnx"
    assert served.read_bytes() == (out / "optimize/net.onnx").read_bytes()


def test_interrupted(tmp_path: Path) -> None:
    path, out = write(tmp_path, "model", "proved", "verify"), tmp_path / "out"
    done = warm.run(PROGRAM, path, "optimize: proving 1", "SIGINT")
    assert done.returncode
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert not (out / "optimize").exists()
    assert not list(out.glob(".*.tmp")), "an interrupted run tidies up itself"
    written = document(out)
    assert [step["state"] for step in written["steps"]] == ["failed", "not run"]
    assert written["exit_code"] == 130
    assert set(states(rx.run_pipeline(path)).values()) == {"done"}


def test_two_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "model", "optimize")
    arguments = (path, "optimize: writing the model", "SIGSTOP")
    process = warm.start(PROGRAM, *arguments, output=tmp_path)
    status, end = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 120
    try:
        while status.read_text().rpartition(")")[2].split()[0] != "T":  # stopped
            assert time.monotonic() < end
            time.sleep(0.02)
        with pytest.raises(rx.UsageError, match="Another run works") as caught:
            rx.run_pipeline(path)
        assert f"process {process.pid}" in caught.value.found
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.join(120)
    assert process.exitcode == 0

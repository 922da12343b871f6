"""A run that is killed, interrupted, or out of space: what it leaves, and that the next goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import rmsnorm_export as rx
from tests import warm
from tests.deploy.models import (
    TABLES,
    assert_consistent,
    document,
    needs_triton,
    ran,
    states,
    write,
)
from tests.engine.conftest import needs_rtx

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


@needs_triton
@needs_rtx
@pytest.mark.export
@pytest.mark.slow
def test_killed_in_every_step(tmp_path: Path) -> None:
    """Each kill is in the middle of a step's work, or when its outputs are about to appear."""
    shapes = (TABLES[name].replace("x=", "input=") for name in ("build", "bench"))
    path = write(tmp_path, "export", "proved", *shapes, "verify", "package")
    out = tmp_path / "out"
    for point in (
        "export: comparing with PyTorch",
        "optimize: proving 1",
        "optimize: putting it into place",
        "build: putting it into place",
        "verify: comparing",
        "bench: timing",
        "package: putting it into place 2",  # about to appear in the repository
        "package: putting it into place 1",  # in the repository, without a record
        "package: done",
    ):
        step = point.partition(":")[0]
        killed(path, point)
        assert_consistent(out)
        finished = (out / step / "step.json").exists()
        assert finished == point.endswith("done"), point
        assert list(out.glob(f".{step}.*.tmp")) or finished, "it was killed too early"
    done = rx.run_pipeline(path)
    assert set(states(done).values()) == {"skipped"}, done.steps
    assert_consistent(out)
    assert not list(out.glob(".*.tmp"))
    assert json.loads((out / "repository/net/1/package.json").read_text())["name"] == "net"


@needs_triton
def test_killed_between_two_packages_of_one_pipeline(tmp_path: Path) -> None:
    """The version that a killed run left is known as ours, whatever comes next."""
    killed(write(tmp_path, "model", "optimize", "package"), "package: putting it into place 1")
    served = tmp_path / "out/repository/net/1/model.onnx"
    assert served.exists()
    path = write(tmp_path, "model", '[optimize]\nrequire = "all"\ntarget = "onnx"', "package")
    killed(path, "package: putting it into place 2")
    path = write(tmp_path, "model", '[optimize]\nrequire = "all"\ntarget = "ort"', "package")
    assert rx.run_pipeline(path).error is None
    assert served.read_bytes() == (tmp_path / "out/optimize/net.onnx").read_bytes()


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
    assert ran(rx.run_pipeline(path)) == ["optimize", "verify"]


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
        assert rx.run_pipeline(path, dry_run=True).steps[0].state == "would run"
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.join(120)
    assert process.exitcode == 0
    assert ran(rx.run_pipeline(path)) == []

"""A run that is killed, interrupted, or out of space: what it leaves, and that the next goes on."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import rmsnorm_export as rx
from tests import warm
from tests.deploy.models import needs_triton
from tests.deploy.pipelines import (
    BENCH,
    BUILD,
    EXPORT,
    MODEL,
    OPTIMIZE,
    PACKAGE,
    PROVE,
    VERIFY,
    assert_consistent,
    document,
    ran,
    states,
    write,
)
from tests.engine.conftest import needs_rtx

ROOT = Path(__file__).resolve().parents[2]

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


def killed(path: Path, at: str, imports: Sequence[str] = warm.USUAL) -> None:
    """A run in a process of its own that kills itself when its progress says ``at``."""
    done = warm.run(PROGRAM, path, at, "SIGKILL", imports=imports)
    assert done.returncode == -signal.SIGKILL, f"{at}: {done.returncode} {done.stderr}"


@needs_triton
@needs_rtx
@pytest.mark.export
@pytest.mark.slow
def test_killed_in_every_step(tmp_path: Path) -> None:
    """Each kill is in the middle of a step's work, or when its outputs are about to appear."""
    shapes = (table.replace("x=", "input=") for table in (BUILD, BENCH))
    path = write(tmp_path, EXPORT, OPTIMIZE, PROVE, *shapes, VERIFY, PACKAGE)
    points = [
        "export: comparing with PyTorch",
        "optimize: proving 1",
        "optimize: writing the model",
        "optimize: putting it into place",
        "build: putting it into place",
        "verify: comparing",
        "bench: timing",
        "package: putting it into place 2",  # about to appear in the repository
        "package: putting it into place 1",  # in the repository, without a record
        "package: done",
    ]
    out = tmp_path / "out"
    for point in points:
        step = point.partition(":")[0]
        killed(path, point, warm.EXPORT)
        assert_consistent(out)
        finished = (out / step / "step.json").exists()
        assert finished == point.endswith("done"), point
        assert list(out.glob(f".{step}.*.tmp")) or finished, "it was killed too early"
    done = rx.run_pipeline(path)
    assert set(states(done).values()) == {"skipped"}, done.steps
    assert_consistent(out)
    assert not list(out.glob(".*.tmp"))
    assert json.loads((out / "repository/net/1/package.json").read_text())["name"] == "net"


def test_killed_while_an_old_state_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, MODEL, OPTIMIZE, PROVE)
    rx.run_pipeline(tmp_path / "pipeline.toml")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out/optimize").iterdir()}
    path = write(tmp_path, MODEL, OPTIMIZE + "\nopset = 20", PROVE)
    for point in ("optimize: writing the model", "optimize: putting it into place"):
        killed(path, point)
        assert {p.name: p.read_bytes() for p in (tmp_path / "out/optimize").iterdir()} == before
    killed(path, "optimize: done")
    assert_consistent(tmp_path / "out")
    done = rx.run_pipeline(path)
    assert states(done) == {"optimize": "skipped"}


@needs_triton
def test_killed_between_two_packages_of_one_pipeline(tmp_path: Path) -> None:
    """The version that a killed run left is known as ours, whatever comes next."""
    path = write(tmp_path, MODEL, OPTIMIZE, PACKAGE)
    killed(path, "package: putting it into place 1")
    assert (tmp_path / "out/repository/net/1/model.onnx").exists()
    path = write(tmp_path, MODEL, OPTIMIZE + '\ntarget = "onnx"', PACKAGE)
    killed(path, "package: putting it into place 2")
    path = write(tmp_path, MODEL, OPTIMIZE + '\ntarget = "ort"', PACKAGE)
    assert rx.run_pipeline(path).passed
    served = (tmp_path / "out/repository/net/1/model.onnx").read_bytes()
    assert served == (tmp_path / "out/optimize/net.onnx").read_bytes()


def test_interrupted(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, VERIFY)
    done = warm.run(PROGRAM, path, "optimize: proving 1", "SIGINT")
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr
    out = tmp_path / "out"
    assert not (out / "optimize").exists()
    assert not list(out.glob(".*.tmp")), "an interrupted run tidies up itself"
    written = document(out)
    assert [step["state"] for step in written["steps"]] == ["failed", "not run"]
    assert written["exit_code"] == 130
    assert ran(rx.run_pipeline(path)) == ["optimize", "verify"]


def test_two_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    nothing = os.open(os.devnull, os.O_RDWR)
    arguments = (path, "optimize: writing the model", "SIGSTOP")
    process = warm.start(PROGRAM, *arguments, streams=[nothing] * 3)
    try:
        wait_until_stopped(process)
        with pytest.raises(rx.UsageError, match="Another run works") as caught:
            rx.run_pipeline(path)
        assert f"process {process.pid}" in caught.value.found
        assert rx.run_pipeline(path, dry_run=True).steps[0].state == "would run"
    finally:
        os.kill(process.pid, signal.SIGCONT)
        os.close(nothing)
        assert process.wait(120) == 0
    assert ran(rx.run_pipeline(path)) == []


def wait_until_stopped(process: warm.Process) -> None:
    """Until the process has stopped itself, as the system tells."""
    end = time.monotonic() + 120
    status = Path(f"/proc/{process.pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: writing ends in the same way."""
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    rx.run_pipeline(path, until="optimize")
    before = {p: p.read_bytes() for p in (tmp_path / "out/optimize").iterdir()}
    write(tmp_path, MODEL, OPTIMIZE + "\nopset = 20", PROVE)
    done = subprocess.run(
        [sys.executable, "-m", "rmsnorm_export", "deploy", str(path), "--format", "json"],
        capture_output=True,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "File too large" in done.stderr
    assert "free some space" in done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 3
    assert {p: p.read_bytes() for p in (tmp_path / "out/optimize").iterdir()} == before
    assert not list((tmp_path / "out").glob(".*.tmp"))
    assert ran(rx.run_pipeline(path)) == ["optimize"]


def without_root() -> list[str]:
    """What to put before a command, so that permissions hold for it as well where root runs it."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and util-linux is not here to take that away")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


def test_a_folder_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    command = [*without_root(), sys.executable, "-m", "rmsnorm_export", "deploy", str(path)]

    def refused(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 3, done.stderr
        return done.stderr

    tmp_path.chmod(0o500)
    try:
        assert "cannot be made" in refused()
        tmp_path.chmod(0o700)
        assert rx.run_pipeline(path).passed
        (tmp_path / "out").chmod(0o500)
        write(tmp_path, MODEL, OPTIMIZE + "\nopset = 20")
        assert "cannot be made or used" in refused()
        (tmp_path / "out").chmod(0o300)
        assert "cannot be made or used" in refused()
    finally:
        tmp_path.chmod(0o700)
        if (tmp_path / "out").exists():
            (tmp_path / "out").chmod(0o700)
    assert rx.run_pipeline(path).step("optimize").state == "done"

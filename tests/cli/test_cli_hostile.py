"""Every hostile and odd file of the registry through the command line.

A hostile file: three lines on stderr that name the culprit, the exit code of the contract, nothing
on stdout, nothing changed on disk. An odd one: the right output.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graph.folders import snapshot
from hostile_models import GAIN, HOSTILE, SHAPE, external_model, norm_model, write

from rmsnorm_export.errors import Error
from rmsnorm_export.system.files import TEMP_SUFFIX
from tests import warm

from .conftest import Outcome, Run

BAD = {name: case.error for name, case in HOSTILE.items() if case.error is not None}
ODD = [name for name, case in HOSTILE.items() if case.error is None]

NOT_RUN = {"unknown_domain", "future_opset", "no_nodes"}
"""ONNX Runtime has no operator of that domain, no such opset, or no output to compute."""

WITHOUT_NORM = {"deepest_nest", "no_nodes"}

SPAWNED = ("a_pipe", "deep_nest", "random_bytes", "parent_location", "control_characters_in_names")
"""Run in a process of their own too: whatever writes to the descriptors past Python is seen."""


def commands(path: Path, good: Path) -> list[list[object]]:
    """Every way to hand over a model file; ``good`` is a sound one."""
    return [
        ["optimize", path, "-o", path.parent / "out.onnx"],
        ["optimize", path, "-o", path.parent / "out.onnx", "--target", "onnx", "--prove"],
        ["optimize", path, "-o", "-"],
        ["inspect", path],
        ["verify", path, good],
        ["verify", good, path],
    ]


def exit_code(name: str) -> int:
    error = BAD[name]
    assert issubclass(error, Error)
    return int(error.exit_code)


def assert_refused(name: str, done: Outcome) -> None:
    done.assert_error(exit_code(name), *HOSTILE[name].words)
    assert done.stdout == b""
    assert all(line.isprintable() for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr


@pytest.fixture
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("good"), norm_model())


@pytest.mark.parametrize("name", BAD)
def test_hostile_file(name: str, run: Run, tmp_path: Path, good: Path) -> None:
    path = HOSTILE[name].make(tmp_path)
    before = snapshot(tmp_path)
    for arguments in commands(path, good):
        assert_refused(name, run(*arguments))
        as_json = run(*arguments, "--format", "json")
        document = json.loads(as_json.stderr) if "-" in arguments else as_json.json
        assert list(document) == ["schema_version", "kind", "what", "found", "fix", "exit_code"]
        assert (document["kind"], document["exit_code"]) == ("error", exit_code(name))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", SPAWNED)
def test_hostile_file_in_a_process_of_its_own(name: str, tmp_path: Path, good: Path) -> None:
    path = HOSTILE[name].make(tmp_path)
    before = snapshot(tmp_path)
    for arguments in (commands(path, good)[0], commands(path, good)[-1]):
        done = warm.run(warm.COMMAND, *arguments, folder=tmp_path)
        assert_refused(name, Outcome(done.returncode, done.stdout.encode(), done.stderr))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
@pytest.mark.parametrize("name", ODD)
def test_odd_file(name: str, target: str, run: Run, tmp_path: Path) -> None:
    case = HOSTILE[name]
    path = case.make(tmp_path)
    before = snapshot(tmp_path)
    out = path.with_name("out.onnx")
    arguments = ["optimize", path, "-o", out, "--target", target, "--format", "json"]
    done = run(*arguments, *(["--prove"] if name != "future_opset" else []))
    assert (done.code, done.stderr) == (0, ""), done.stderr
    for word in case.words:
        assert word in " ".join(done.json["notes"])
    assert len(done.json["fused"]) + len(done.json["refused"]) == (name not in WITHOUT_NORM)
    if name != "future_opset":
        assert all(site["proof"]["passed"] for site in done.json["fused"])
    after = snapshot(tmp_path)
    assert after.pop("out.onnx")
    assert after == before
    if name not in NOT_RUN:
        np.testing.assert_allclose(_run(out), _run(path), rtol=1e-6, atol=0)
        agreed = run("verify", path, out, "--format", "json")
        assert (agreed.code, agreed.stderr) == (0, "")
        assert agreed.json["passed"] is True
        assert run("inspect", out, "--target", target).code == 0


def _run(path: Path) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    return session.run(None, {"x": x})[0]


READERS: dict[str, Callable[[Path, Path], list[object]]] = {
    "a model": lambda path, _: ["inspect", path],
    "inputs": lambda path, good: ["verify", good, good, "--inputs", path],
    "a report": lambda path, good: ["package", good, "--name", "m", "-o", "r", "--report", path],
    "a pipeline": lambda path, _: ["deploy", path],
    "a config": lambda path, _: ["export", path, "-o", "out.onnx"],
    "an exported program": lambda path, _: ["export", path, "--trust-source", "-o", "out.onnx"],
}
NAMES = {"a config": "config.json", "an exported program": "model.pt2"}
"""Commands that read a file, by what it should be."""


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "socket"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_neither_waited_for_nor_read(
    reader: str, kind: str, run: Run, tmp_path: Path, good: Path
) -> None:
    path = tmp_path / NAMES.get(reader, "file")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path = Path("/dev/zero")
    before = snapshot(tmp_path) if kind == "device" else os.listdir(tmp_path)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(30)
    try:
        done = run(*READERS[reader](path, good))
    finally:
        signal.alarm(0)
    assert done.code in (2, 3), done.stderr
    done.assert_error(done.code, path.name)
    assert before == (snapshot(tmp_path) if kind == "device" else os.listdir(tmp_path))


def _late(*_: object) -> None:
    raise AssertionError("it is waited for, or read without end")


def _npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def _twice() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(SHAPE, np.float32), y=np.ones(SHAPE, np.float32))
    return file.getvalue().replace(b"y.npy", b"x.npy")


def _header(shape: str, descr: str = "'<f4'") -> bytes:
    return _npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


NPZ: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: _npz(x=_npy("(" * 9000)),
    "operators": lambda: _npz(x=_npy("-" * 9000 + "1")),
    "no header": lambda: _npz(x=_npy("")),
    "no dictionary": lambda: _npz(x=_npy("[1, 2]")),
    "an odd type": lambda: _npz(x=_header("(1,)", "'<Q9999999999'")),
    "fields": lambda: _npz(x=_header("(1,)", "[('a', [('b', '<f4'), ('b', '<f4')])]")),
    "a huge shape": lambda: _npz(x=_header("(10**9, 10**9)".replace("10**9", "1000000000"))),
    "a negative shape": lambda: _npz(x=_header("(-1,)")),
    "a shape past int64": lambda: _npz(x=_header(f"({2**70},)")),
    "no data": lambda: _npz(x=_header("(1000,)")),
    "objects": lambda: _npz(x=_header("(1,)", "'|O'")),
    "more than its size": lambda: _npz(x=bytes(1 << 28)),
    "a name twice": _twice,
    "half an archive": lambda: _npz(x=_header("(1,)"))[:60],
    "one array": lambda: _header("(1,)") + bytes(4),
    "no archive": lambda: b"PK\x03\x04" + bytes(100),
    "a pickle": lambda: b"\x80\x04N.",
    "nothing": lambda: b"",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NPZ)
def test_hostile_inputs(name: str, run: Run, tmp_path: Path, good: Path) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(NPZ[name]())
    run("verify", good, good, "--inputs", path).assert_error(3, "inputs.npz")


@pytest.mark.parametrize(
    ("streams", "code", "words"),
    [
        (">&-", 2, "Standard output is closed"),
        (">&- <&-", 2, "Standard output is closed"),
        (">/dev/full", 3, "No space left"),
        ("1</dev/null", 3, "Bad file descriptor"),
        (">&- 2>&-", 2, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
    ],
)
def test_closed_streams(streams: str, code: int, words: str, good: Path) -> None:
    command = [sys.executable, "-m", "rmsnorm_export.cli.main", "inspect", good]
    text = " ".join(shlex.quote(str(part)) for part in command)
    path = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        ["sh", "-c", f"{text} {streams}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    if code and words:
        assert len(done.stderr.splitlines()) == 3


# One call of os.<name>, the count-th, ends the process; weights are copied before the model.
KILLER = """
import os, signal, sys
from rmsnorm_export.cli.main import main
name, count, after = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after"
real, calls = getattr(os, name), 0
def killer(*args, **options):
    global calls
    calls += 1
    if calls == count and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*args, **options)
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(os, name, killer)
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize("old", [None, b"the old file"])
@pytest.mark.parametrize(
    ("name", "count", "when", "done"),
    [
        ("fsync", 1, "before", False),
        ("fsync", 2, "after", False),
        ("replace", 1, "before", False),
        ("replace", 1, "after", True),
    ],
)
def test_a_kill_in_the_middle_of_saving(
    tmp_path: Path, name: str, count: int, when: str, done: bool, old: bytes | None
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    path, out = external_model(source, data=GAIN), target / "out.onnx"
    if old is not None:
        out.write_bytes(old)
    before = snapshot(source)
    arguments = ["optimize", path, "-o", out, "--force", "--weights", "copy"]
    ended = warm.run(KILLER, name, count, when, *arguments)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert snapshot(source) == before
    if done:
        np.testing.assert_allclose(_run(out), _run(path), rtol=1e-6, atol=0)
    elif old is None:
        assert not out.exists()
    else:
        assert out.read_bytes() == old
    visible = {entry for entry in os.listdir(target) if not entry.endswith(TEMP_SUFFIX)}
    assert visible <= {"out.onnx", "w.bin"}
    # What was left behind does not stand in the way.
    again = warm.run(warm.COMMAND, *arguments)
    assert again.returncode == 0, again.stderr
    np.testing.assert_allclose(_run(out), _run(path), rtol=1e-6, atol=0)

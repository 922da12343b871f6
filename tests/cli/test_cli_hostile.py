"""Every hostile and odd file of the registry through the command line.

A hostile file: three lines on stderr that name the culprit, the exit code of the contract, nothing
on stdout, nothing changed on disk. An odd one: the right output.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import shlex
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graph.folders import snapshot
from hostile.frames import SHAPE, norm_model, write
from hostile.registry import HOSTILE

from rmsnorm_export.errors import InputError
from tests.sample import crossed

from .conftest import Run

BAD = [name for name, case in HOSTILE.items() if case.error is InputError]
ODD = [name for name in HOSTILE if name not in BAD]
NOT_RUN = {"unknown_domain", "future_opset", "no_nodes"}
"""ONNX Runtime has no operator of that domain, no such opset, or no output to compute."""
COMMANDS = (
    "optimize {path} -o out.onnx",
    "optimize {path} -o out.onnx --target onnx --prove",
    "optimize {path} -o -",
    "inspect {path}",
    "verify {path} {good}",
    "verify {good} {path}",
)
AS_JSON = (COMMANDS[2], COMMANDS[5])


@pytest.fixture
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("good"), norm_model())


@pytest.mark.parametrize("name", BAD)
def test_hostile_file(
    name: str, run: Run, tmp_path: Path, good: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = HOSTILE[name].make(tmp_path)
    before = snapshot(tmp_path)
    for command in COMMANDS:
        arguments = command.format(path=path, good=good).split()
        done = run(*arguments)
        done.assert_error(3, *HOSTILE[name].words)
        assert done.stdout == b""
        assert all(line.isprintable() for line in done.stderr.splitlines())
        if command not in AS_JSON:
            continue
        as_json = run(*arguments, "--format", "json")
        document = json.loads(as_json.stderr) if "-" in arguments else as_json.json
        assert list(document) == ["schema_version", "kind", "what", "found", "fix", "exit_code"]
        assert (document["kind"], document["exit_code"]) == ("error", 3)
    assert snapshot(tmp_path) == before
    assert capfd.readouterr() == ("", ""), "a library writes past Python"


@crossed(3, name=ODD, target=["portable", "onnx", "ort"])
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
    assert len(done.json["fused"]) + len(done.json["refused"]) == (
        name not in ("deepest_nest", "no_nodes")
    )
    if name != "future_opset":
        assert all(site["proof"]["passed"] for site in done.json["fused"])
    after = snapshot(tmp_path)
    assert after.pop("out.onnx")
    assert after == before
    if name not in NOT_RUN:
        agreed = run("verify", path, out, "--rtol", "1e-6", "--format", "json")
        assert (agreed.code, agreed.stderr) == (0, "")
        assert agreed.json["passed"] is True
        assert run("inspect", out, "--target", target).code == 0


READERS = {
    "a model": ("file", "inspect {path}"),
    "inputs": ("file", "verify {good} {good} --inputs {path}"),
    "a pipeline": ("file", "deploy {path}"),
    "a config": ("config.json", "export {path} -o out.onnx"),
    "an exported program": ("model.pt2", "export {path} --trust-source -o out.onnx"),
}
"""What a command reads: the name of the file, and the command."""


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "socket"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_not_read(
    reader: str, kind: str, run: Run, tmp_path: Path, good: Path
) -> None:
    name, command = READERS[reader]
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path = Path("/dev/zero")
    before = os.listdir(tmp_path)
    faulthandler.dump_traceback_later(60, exit=True)  # where it is waited for
    done = run(*command.format(path=path, good=good).split())
    faulthandler.cancel_dump_traceback_later()
    assert done.code in (2, 3), done.stderr
    done.assert_error(done.code, path.name)
    assert os.listdir(tmp_path) == before


def _npz(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    return file.getvalue()


def _npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def _twice() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(SHAPE, np.float32), y=np.ones(SHAPE, np.float32))
    return file.getvalue().replace(b"y.npy", b"x.npy")


def _header(shape: str, descr: str = "'<f4'") -> bytes:
    return _npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


NPZ: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: _npz(_npy("(" * 9000)),
    "operators": lambda: _npz(_npy("-" * 9000 + "1")),
    "no header": lambda: _npz(_npy("")),
    "no dictionary": lambda: _npz(_npy("[1, 2]")),
    "an odd type": lambda: _npz(_header("(1,)", "'<Q9999999999'")),
    "fields": lambda: _npz(_header("(1,)", "[('a', [('b', '<f4'), ('b', '<f4')])]")),
    "a huge shape": lambda: _npz(_header("(1000000000, 1000000000)")),
    "a negative shape": lambda: _npz(_header("(-1,)")),
    "a shape past int64": lambda: _npz(_header(f"({2**70},)")),
    "no data": lambda: _npz(_header("(1000,)")),
    "objects": lambda: _npz(_header("(1,)", "'|O'")),
    "more than its size": lambda: _npz(bytes(1 << 28)),
    "a name twice": _twice,
    "half an archive": lambda: _npz(_header("(1,)"))[:60],
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
    command = shlex.join([sys.executable, "-m", "rmsnorm_export", "inspect", str(good)])
    done = subprocess.run(
        ["sh", "-c", f"{command} {streams}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == (3 if words else 0)

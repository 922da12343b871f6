"""Whatever a backend does to its process, the caller gets an error that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_export.errors import BackendMissingError, Error, ExitCode, InputError, UsageError
from rmsnorm_export.system import process
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine import build
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, run_backend
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.failure import failure

from .conftest import SHAPES

VERSION = {"event": "version", "version": "1.7.1", "polygraphy": "0"}
SAY = "import json, os, sys; say = lambda **e: print(json.dumps(e), flush=True); "


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch):
    """Let the process run this Python instead of a backend."""

    def become(code: str) -> None:
        monkeypatch.setattr(process, "CODE", SAY + code)
        monkeypatch.setattr(build, "choose", lambda _: (RTX, "a test"))

    return become


def test_events_progress_and_noise(act) -> None:
    act(
        "r = json.loads(sys.stdin.readline()); print('noise'); print('[1]');"
        "say(event='progress', phase='a', done=1, total=2); say(event='echo', **r)"
    )
    told: list[object] = []
    ended = run_backend({"command": "x"}, RTX, lambda *step: told.append(step))
    assert told == [("a", 1, 2)]
    assert ended.events == ({"event": "echo", "command": "x", "module": "tensorrt_rtx"},)
    assert ended.code == 0


def test_polygraphy_is_told_which_backend(act) -> None:
    act("say(event='env', value=os.environ['POLYGRAPHY_USE_TENSORRT_RTX'])")
    values = []
    for info in (RTX, TENSORRT):
        event = run_backend({}, info).first("env")
        assert event is not None
        values.append(event["value"])
    assert values == ["1", "0"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.abort()", ("SIGABRT", "while starting")),
        (
            "say(event='version', version='1.7.1'); say(event='stage', stage='parse');"
            "print('bad plugin', file=sys.stderr, flush=True); os.abort()",
            ("TensorRT-RTX 1.7.1", "while reading the model", "SIGABRT", "bad plugin"),
        ),
        (
            "say(event='stage', stage='build'); say(event='message', severity='error',"
            " stage='build', text='tactic lost'); import signal; os.kill(os.getpid(), 11)",
            ("while building the engine", "SIGSEGV", "tactic lost"),
        ),
        ("os._exit(3)", ("exit code 3",)),
        ("os.kill(os.getpid(), 9)", ("SIGKILL", "memory")),
        ('print(\'{"event": "do\')', ("exit code 0",)),
    ],
)
def test_a_death_is_a_finding(act, one_norm: Path, tmp_path: Path, code: str, words) -> None:
    act(code)
    old = tmp_path / "old.engine"
    old.write_bytes(b"old")
    with pytest.raises(InputError) as caught:
        build_engine(one_norm, old, shapes=SHAPES, force=True)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.fix
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.engine", "one.onnx"]


def test_an_interrupt_leaves_nothing(act, one_norm: Path, tmp_path: Path) -> None:
    act("say(event='progress', phase='a', done=1, total=2); sys.stdin.read(); sys.stdin.read()")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(one_norm, tmp_path / "e", shapes=SHAPES, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["one.onnx"]


def test_an_orphan_ends() -> None:
    code = "from rmsnorm_export.system.process import end_with; end_with(0); print('alive')"
    orphan = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    out, _ = orphan.communicate(timeout=60)  # closes stdin
    assert (orphan.returncode, out) == (1, b"")


def ended(*events: dict[str, object], code: int = 0) -> Ended:
    return Ended((VERSION, *events), code, "")


def parse_error(op: str, text: str, node: str = "n", inside: tuple[str, ...] = ()) -> Ended:
    error = {"code": "INVALID_NODE", "text": text, "node": node, "op": op, "inside": list(inside)}
    return ended({"event": "error", "kind": "parse", "errors": [error]})


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        (
            parse_error("Frob", "Plugin not found, are the plugin name ... correct?"),
            InputError,
            ("node 'n' (Frob)", "Plugin not found", "INVALID_NODE", "--target onnx"),
        ),
        (parse_error("RMSNorm", "Plugin not found"), InputError, ("function body", "portable")),
        (
            parse_error("SkipSimplifiedLayerNormalization", "Plugin not found"),
            InputError,
            ("ONNX Runtime", "--target portable"),
        ),
        (parse_error("Loop", "no", inside=("outer (F)",)), InputError, ("inside 'outer (F)'",)),
        (ended({"event": "error", "kind": "parse", "errors": []}), InputError, ("checker",)),
        (
            ended({"event": "error", "kind": "shape-input", "name": "sizes"}),
            UsageError,
            ("'sizes'",),
        ),
        (
            ended({"event": "error", "kind": "import", "text": "libnvinfer.so: cannot open"}),
            BackendMissingError,
            ("libnvinfer", "pip install"),
        ),
        (
            ended({"event": "error", "kind": "plugin", "text": "nothing"}),
            BackendMissingError,
            ("/lib/p.so", "plugin check"),
        ),
        (
            ended(
                {"event": "message", "severity": "error", "stage": "build", "text": "cudaError 35:"
                 " CUDA driver version is insufficient"},
                {"event": "error", "kind": "build", "text": "Invalid Engine."},
            ),
            BackendMissingError,
            ("no GPU", "insufficient"),
        ),
        (
            ended(
                {"event": "message", "severity": "error", "stage": "build", "text": "Dimension"
                 " mismatch for tensor x and profile 0"},
                {"event": "error", "kind": "build", "text": "Invalid Engine."},
            ),
            InputError,
            ("profile 0", "--shapes"),
        ),
        (
            ended({"event": "error", "kind": "system", "errno": 28, "text": "No space left",
                   "file": "/x/e"}),
            InputError,
            ("No space left", "/x/e", "free some space"),
        ),
        (ended({"event": "error", "kind": "memory", "text": ""}), InputError, ("memory",)),
        (ended({"event": "error", "kind": "failed", "text": "KeyError: 1"}), Error, ("KeyError",)),
    ],
)  # fmt: skip
def test_every_error_says_what_to_do(what: Ended, kind: type[Error], words) -> None:
    error = failure(what, TENSORRT, library="/lib/p.so")
    assert type(error) is kind
    for word in words:
        assert word in str(error)
    assert "TensorRT 1.7.1" in str(error) or kind is UsageError or "memory" in words
    assert error.fix
    assert error.exit_code in set(ExitCode)

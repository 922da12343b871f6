"""What holds for every command: exit codes, three-line errors, clean streams, a light start."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmsnorm_export.errors import BackendMissingError, RequirementError

from .conftest import Run, model

PROGRAM = [sys.executable, "-m", "rmsnorm_export"]
HEAVY = (
    "numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "torch", "ml_dtypes", "logging", "ctypes",
    "tensorrt", "tensorrt_rtx", "polygraphy", "rmsnorm_export.tensorrt.plugin",
)  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        *(
            [name, "--help"]
            for name in ("optimize", "inspect", "verify", "export", "build", "doctor")
        ),
        ["plugin", "--help"],
        *(["plugin", name, "--help"] for name in ("build", "check", "lines")),
    ],
)
def test_help_loads_nothing_but_click(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom rmsnorm_export.cli.main import main\n"
        f"code = main({arguments!r})\n"
        f"print('loaded', *sorted(set({HEAVY!r}) & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: rmsnorm-export")
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["optimise"], "optimise"),
        (["optimize"], "MODEL"),
        (["optimize", "m.onnx"], "--output"),
        (["optimize", "m.onnx", "-o"], "-o"),
        (["optimize", "m.onnx", "-o", "o.onnx", "--bogus"], "--bogus"),
        (["optimize", "m.onnx", "n.onnx", "-o", "o.onnx"], "n.onnx"),
        (["optimize", "m.onnx", "-o", "o.onnx", "--target", "cuda"], "cuda"),
        (["optimize", "m.onnx", "-o", "o.onnx", "--numerics", "fast"], "fast"),
        (["optimize", "m.onnx", "-o", "o.onnx", "--weights", "drop"], "drop"),
        (["optimize", "m.onnx", "-o", "o.onnx", "--opset", "0"], "--opset"),
        (["inspect", "m.onnx", "--format", "xml"], "xml"),
        (["--bogus", "inspect", "m.onnx"], "--bogus"),
        (["verify", "a.onnx"], "B"),
        (["verify", "-", "-"], "verify - -"),
        (["verify", "a", "b", "--shapes", "x"], "NAME"),
        (["verify", "a", "b", "--shapes", "=1x2"], "NAME"),
        (["verify", "a", "b", "--shapes", "x=1x"], "NAME"),
        (["verify", "a", "b", "--shapes", "x=1x-2"], "NAME"),
        (["verify", "a", "b", "--shapes", "x=0"], "size"),
        (["verify", "a", "b", "--shapes", "x=1", "--shapes", "x=2"], "twice"),
        (["verify", "a", "b", "--rtol", "small"], "small"),
        (["doctor", "now"], "now"),
        (["doctor", "a\x1b[2J\nb"], "\\x1b[2J"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], word: str) -> None:
    done = run(*arguments)
    done.assert_error(2, word)
    assert done.stdout == b""
    assert "\x1b" not in done.stderr
    as_json = run(*arguments, "--format", "json") if "xml" not in arguments else None
    if as_json is not None and arguments[-1] != "-o":
        as_json.assert_error(2)
        assert as_json.json["kind"] == "error"
        assert as_json.json["exit_code"] == 2


@pytest.fixture
def bad_file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file that is no model: missing, empty, cut short, of another kind, or a folder."""
    path = tmp_path / "bad.onnx"
    whole = model(2).SerializeToString()
    contents = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "text": b"hello\n" * 100,
        "zip": b"PK\x03\x04" + bytes(100),
        "random": bytes(range(255, 0, -1)) * 20,
    }
    if request.param == "folder":
        path.mkdir()
    elif request.param == "unreadable name":
        path = tmp_path / ("x" * 300)
    elif request.param != "missing":
        path.write_bytes(contents[request.param])
    return path


@pytest.mark.parametrize(
    "bad_file",
    ["missing", "empty", "truncated", "text", "zip", "random", "folder", "unreadable name"],
    indirect=True,
)
def test_unreadable_input(run: Run, bad_file: Path, three: Path) -> None:
    listing = sorted(p.name for p in bad_file.parent.iterdir())
    for arguments in (
        ["inspect", bad_file],
        ["optimize", bad_file, "-o", "out.onnx"],
        ["optimize", bad_file, "-o", "-"],
        ["verify", bad_file, three],
        ["verify", three, bad_file],
    ):
        done = run(*arguments)
        done.assert_error(3)
        assert done.stdout == b""
        assert "Traceback" not in done.stderr
    done = run("inspect", bad_file, "--format", "json")
    done.assert_error(3)
    assert list(done.json) == ["schema_version", "kind", "what", "found", "fix", "exit_code"]
    assert (done.json["kind"], done.json["exit_code"]) == ("error", 3)
    assert sorted(p.name for p in bad_file.parent.iterdir()) == listing


@pytest.mark.parametrize("place", ["missing/out.onnx", ".", "file/out.onnx"])
def test_unwritable_output(run: Run, three: Path, place: str) -> None:
    (three.parent / "file").write_bytes(b"x")
    run("optimize", three, "-o", place, "--force").assert_error(3)


def test_an_internal_error_is_three_lines(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret\x1b[2J\nline")

    monkeypatch.setattr("rmsnorm_export.rewrite.optimize.inspect", broken)
    done = run("inspect", three)
    done.assert_error(1, "KeyError", "--debug")
    assert "\x1b" not in done.stderr
    debug = run("inspect", three, "--debug")
    assert debug.code == 1
    assert "Traceback (most recent call last)" in debug.stderr
    assert debug.stderr.splitlines()[-1].startswith("fix: ")
    assert "Traceback" in run("--debug", "inspect", three).stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BackendMissingError("No runtime.", fix="pip install y"), 6, ["pip install"]),
        (RequirementError("Too few.", found="nothing", fix="more norms"), 5, ["Too few"]),
        (ModuleNotFoundError("No", name="onnxruntime.capi"), 6, ["pip install 'onnxruntime>="]),
        (MemoryError(), 1, ["Out of memory"]),
        (PermissionError(13, "Permission denied", "/some/where"), 3, ["/some/where"]),
        (OSError(28, "No space left on device"), 3, ["No space left"]),
        (KeyError(), 1, ["KeyError"]),
    ],
)
def test_exit_code_of_an_exception(
    run: Run,
    three: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    words: list[str],
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rmsnorm_export.rewrite.optimize.inspect", broken)
    run("inspect", three).assert_error(code, *words)
    assert run("inspect", three, "--format", "json").json["exit_code"] == code


def test_quiet_and_verbose_before_and_after_the_command(run: Run, three: Path) -> None:
    plain = run("inspect", three).text
    quiet = run("-q", "inspect", three).text
    assert quiet == plain.splitlines()[0] + "\n"
    assert run("inspect", three, "--quiet").text == quiet
    verbose = run("-v", "inspect", three).text
    assert verbose.count("/ReduceMean_1") == 3
    assert "/ReduceMean_1" not in plain
    assert run("inspect", "-v", three).text.count("/ReduceMean_1") == 3
    assert run("-v", "inspect", three, "-q").text.count("\n") == plain.count("\n")


def in_terminal(arguments: list[object], cwd: Path) -> tuple[int, str]:
    """Exit code and the beginning of what the program shows in a terminal."""
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen([*PROGRAM, *map(str, arguments)], **streams, cwd=cwd)
    os.close(slave)
    code, shown = process.wait(timeout=60), os.read(master, 65536)
    os.close(master)
    return code, shown.decode()


def test_no_model_is_written_to_or_read_from_a_terminal(three: Path) -> None:
    for arguments in (["optimize", three, "-o", "-"], ["inspect", "-"]):
        code, shown = in_terminal(arguments, three.parent)
        assert code == 2
        assert shown.splitlines()[0].startswith("error: ")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["inspect", "three.onnx"], ["optimize", "three.onnx", "-o", "-"], ["inspect"]],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_that_goes_away(three: Path, arguments: list[str], as_json: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    as_json &= arguments[0] != "--help"
    done = subprocess.run(
        [*PROGRAM, *arguments, *(["--format", "json"] if as_json else [])],
        cwd=three.parent,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    wrong = arguments == ["inspect"]
    assert done.returncode == (2 if wrong else 141)
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
    # it reads stdin for as long as the pipe is open; before that, Python itself starts
    waiting = Path(f"/proc/{process.pid}/wchan")
    deadline = time.monotonic() + 20
    while "pipe" not in waiting.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    os.close(writer)
    assert process.returncode == 130
    assert (out, err) == ("", "interrupted\n")
    assert list(tmp_path.iterdir()) == []

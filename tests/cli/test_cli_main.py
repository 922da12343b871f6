"""What holds for every command: exit codes, three-line errors, clean streams, a light start."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

import rmsnorm_export
from rmsnorm_export.cli.main import cli, main
from rmsnorm_export.errors import BackendMissingError, ExitCode, RequirementError

from .conftest import Run, model

PROGRAM = [sys.executable, "-m", "rmsnorm_export"]
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "torch", "ml_dtypes", "logging")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        *(
            [name, "--help"]
            for name in ("optimize", "inspect", "verify", "export", "build", "plugin", "doctor")
        ),
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


def test_help_names_every_command_and_exit_code(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for word in ("optimize", "inspect", "verify", "doctor", "Exit codes:", '"error"'):
        assert word in done.text
    for code in ExitCode:
        assert f"\n    {code.value} " in done.text


def test_without_arguments_the_help_goes_to_stderr(run: Run) -> None:
    done = run()
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith("Usage: rmsnorm-export")


def test_version(run: Run) -> None:
    done = run("--version")
    assert (done.code, done.text) == (0, f"rmsnorm-export {rmsnorm_export.__version__}\n")


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
        (["optimize", "m.onnx", "-o", "o.onnx", "--seed", "-1"], "--seed"),
        (["inspect", "m.onnx", "--format", "xml"], "xml"),
        (["--bogus", "inspect", "m.onnx"], "--bogus"),
        (["verify", "a.onnx"], "B"),
        (["verify", "-", "-"], "verify - -"),
        (["verify", "a", "b", "--shape", "x"], "NAME"),
        (["verify", "a", "b", "--shape", "=1x2"], "NAME"),
        (["verify", "a", "b", "--shape", "x=1x"], "NAME"),
        (["verify", "a", "b", "--shape", "x=1x-2"], "NAME"),
        (["verify", "a", "b", "--shape", "x=0"], "size"),
        (["verify", "a", "b", "--shape", "x=1", "--shape", "x=2"], "twice"),
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


@pytest.mark.parametrize("data", [b"", b"hello", model(2).SerializeToString()[:-40]])
def test_unreadable_stdin(run: Run, three: Path, data: bytes) -> None:
    run("inspect", "-", stdin=data).assert_error(3)
    run("optimize", "-", "-o", "-", stdin=data).assert_error(3)
    run("verify", "-", three, stdin=data).assert_error(3)


@pytest.mark.parametrize("place", ["missing/out.onnx", ".", "file/out.onnx"])
def test_unwritable_output(run: Run, three: Path, place: str) -> None:
    (three.parent / "file").write_bytes(b"x")
    run("optimize", three, "-o", place, "--force").assert_error(3)


def test_an_internal_error_is_three_lines(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret\x1b[2J\nline")

    monkeypatch.setattr(rmsnorm_export, "inspect", broken)
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
        (
            BackendMissingError("No runtime.", found="x" * 5, fix="pip install y"),
            6,
            ["pip install"],
        ),
        (RequirementError("Too few.", found="nothing", fix="more norms"), 5, ["Too few"]),
        (
            ModuleNotFoundError("No module", name="onnxruntime.capi"),
            6,
            ["pip install 'onnxruntime>="],
        ),
        (MemoryError(), 1, ["Out of memory"]),
        (PermissionError(13, "Permission denied", "/some/where"), 3, ["/some/where"]),
        (OSError(28, "No space left on device"), 3, ["No space left"]),
        (RecursionError("too deep"), 1, ["RecursionError"]),
        (EOFError(), 1, ["EOFError"]),
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

    monkeypatch.setattr(rmsnorm_export, "inspect", broken)
    run("inspect", three).assert_error(code, *words)
    assert run("inspect", three, "--format", "json").json["exit_code"] == code


def test_without_onnxruntime_exit_code_6(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    run("verify", three, three).assert_error(6, "pip install")
    run("optimize", three, "-o", "out.onnx", "--prove").assert_error(6, "pip install")
    assert not (three.parent / "out.onnx").exists()
    assert run("optimize", three, "-o", "out.onnx").code == 0


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


def test_output_has_no_styles_without_a_terminal(run: Run, mixed: Path) -> None:
    for arguments in (["inspect", mixed], ["optimize", mixed, "-o", "o.onnx"]):
        assert b"\x1b" not in run(*arguments).stdout


def in_terminal(arguments: list[object], cwd: Path, **environment: str) -> tuple[int, str]:
    """Exit code and everything that the program shows in a terminal."""
    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env=env | {"TERM": "xterm"} | environment,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux: the last writer closed the terminal
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    return process.wait(timeout=60), shown.decode()


def test_a_terminal_gets_styles_unless_no_color(three: Path) -> None:
    code, shown = in_terminal(["inspect", three], three.parent)
    assert code == 0
    assert "\x1b[1;32m3 of 3 RMSNorms can be one node" in shown
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, shown = in_terminal(["inspect", three], three.parent, **environment)
        assert code == 0
        assert "\x1b" not in shown


def test_a_terminal_sees_how_far_the_proofs_are(three: Path) -> None:
    arguments: list[object] = ["optimize", three, "-o", "out.onnx", "--prove"]
    code, shown = in_terminal(arguments, three.parent)
    assert code == 0
    assert "Proving" in shown
    assert "of 3" in shown
    # the bar is gone before the report is printed, and never there in a log
    report = shown.rindex("3 of 3 RMSNorms are one node")
    assert "Proving" not in shown[report:]
    _, quiet = in_terminal([*arguments, "-q", "--force"], three.parent)
    assert "Proving" not in quiet


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


def test_an_encoding_that_lacks_a_letter(tmp_path: Path) -> None:
    proto = model(1)
    proto.graph.node[6].name = "größe_層"
    onnx.save(proto, tmp_path / "m.onnx")
    done = subprocess.run(
        [*PROGRAM, "inspect", "m.onnx"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"gr\\xf6\\xdfe_\\u5c64" in done.stdout


def test_stdout_is_only_the_document(spawn: Run, three: Path) -> None:
    done = spawn("-v", "inspect", three, "--format", "json")
    assert done.code == 0
    assert json.loads(done.stdout)["kind"] == "report"


def test_main_is_reentrant(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v", "inspect", str(three), "--format", "json"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(three)]) == 0
    assert capsys.readouterr().out.count("/ReduceMean_1") == 0
    assert cli.name == "cli"

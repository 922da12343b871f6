"""``deploy`` as a program: output, documents, pages and exit codes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import onnx
import pytest

from tests import warm
from tests.cli.conftest import Run
from tests.pipeline.pipelines import EXPORT, MODEL, OPTIMIZE, PROVE, VERIFY, document, write
from tests.show.html_pages import Page

STRICT = "[verify]\natol = 0.0\nshapes = { x = [64, 40] }"


def test_text(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    done = run("deploy", path)
    assert (done.code, done.stderr) == (0, "")
    first, place, empty, head, *rows = done.text.splitlines()
    assert first.startswith("net: deployed (2 done, 0 up to date, ")
    assert (place, empty) == (f"  {path} -> {tmp_path / 'out'}", "")
    assert head.split() == ["step", "state", "time", "what", "came", "out"]
    assert [row.split()[:2] for row in rows] == [["optimize", "done"], ["prove", "done"]]
    assert "3 of 3 RMSNorms are one node" in rows[0]
    again = run("deploy", path, "-v")
    assert again.text.startswith("net: deployed (0 done, 2 up to date, ")
    assert "      file   net.onnx" in again.text
    assert "optimize  skipped" in again.stderr
    quiet = run("deploy", path, "-q")
    assert len(quiet.text.splitlines()) == 1


def test_dry_run_until_and_force_step(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, VERIFY)
    dry = run("deploy", path, "--dry-run")
    assert dry.code == 0
    assert dry.text.startswith("net: 3 of 3 steps would run; nothing was changed\n")
    assert "optimize  would run        it has not run yet" in dry.text
    assert not (tmp_path / "out").exists()
    some = run("deploy", path, "--until", "optimize")
    assert some.text.startswith("net: as far as asked (1 done, ")
    assert "prove     not run         it is behind --until optimize" in some.text
    run("deploy", path)
    dry = run("deploy", path, "--dry-run", "--force-step", "prove")
    assert "prove     would run         --force-step prove" in dry.text
    assert "optimize  up to date        nothing has changed" in dry.text
    run("deploy", path, "--until", "bench").assert_error(2, "no such step", "--until bench")
    assert run("deploy", path, "--until", "nonsense").code == 2


def test_json_is_the_document_in_the_folder(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, STRICT)
    done = run("deploy", path, "--format", "json")
    done.assert_error(4, "Step verify: The models differ", "allowed")
    assert (done.json["kind"], done.json["schema_version"]) == ("deployment", 1)
    assert done.json["error"]["exit_code"] == done.json["exit_code"] == 4
    assert {k: v for k, v in done.json.items() if k != "error"} == document(tmp_path / "out")
    assert [step["state"] for step in done.json["steps"]] == ["done", "failed"]


def test_errors(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    run("deploy", "none.toml").assert_error(3, "pipeline file does not exist")
    wrong = write(tmp_path, MODEL, "[optimize]\nnumeric = 'exact'")
    run("deploy", wrong).assert_error(
        2, "In pipeline.toml, line 7, [optimize] numeric", "did you mean numerics?"
    )
    done = run("deploy", wrong, "--format", "json")
    assert (done.code, done.json["kind"]) == (2, "error")
    write(tmp_path, MODEL, "[optimize]\nrequire = 4")
    done = run("deploy", path)
    done.assert_error(5, "Step optimize: [optimize] require = 4 is not met", "3 norms are one node")
    assert "net: optimize FAILED" in done.text
    write(tmp_path, MODEL, OPTIMIZE, "[verify]\nengine = 'require'", '[build]\nshapes = "x=4x40"')
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        run("deploy", path).assert_error(6, "no GPU is visible", 'engine = "auto"')


def test_html(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, STRICT)
    done = run("deploy", path, "--html", "page.html")
    assert done.code == 4
    page = (tmp_path / "page.html").read_text()
    read = Page(page)  # every element is closed, in order
    assert "net: verify FAILED" in read.text
    assert "3 of 3 RMSNorms are one node" in read.text
    ids = [section["id"] for section in read.all("section")]
    assert ids == ["summary", "rewrites", "sites", "verification-raw-optimized"]
    assert "problem" in read.values("class")
    run("deploy", path, "--html", "page.html").assert_error(2, "--force")
    run("deploy", path, "--html", path, "--force").assert_error(2, "would overwrite a model")
    assert "[optimize]" in path.read_text()
    assert run("deploy", path, "--html", "page.html", "--force").code == 4


def test_a_terminal_sees_every_step(tmp_path: Path) -> None:
    """stderr is a terminal: a line for each step that is over, and no escape codes on stdout."""
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    ours, theirs = pty.openpty()
    said: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                said.append(data)
        except OSError:  # the other end is closed
            return

    thread = threading.Thread(target=read)
    thread.start()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-m", "rmsnorm_export", "deploy", str(path)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        check=False,
    )
    os.close(theirs)
    thread.join(30)
    os.close(ours)
    text = b"".join(said).decode("utf-8", "replace")
    assert done.returncode == 0, text
    assert "optimize  done" in text
    assert "prove     done" in text
    assert b"\x1b" not in done.stdout


def test_keys(run: Run, tmp_path: Path) -> None:
    done = run("deploy", "--keys")
    assert (done.code, done.stderr) == (0, "")
    targets = '# target: one of "portable", "onnx", "ort", "plain"; default: portable'
    assert targets in done.text
    assert "# name: a string; required" in done.text
    assert "# seed: an integer from 0 to 2**63 - 1; default 0" in done.text
    path = tmp_path / "keys.toml"
    path.write_text(done.text)
    run("deploy", path).assert_error(2, "line 3, [pipeline] name", "the key is missing")


@pytest.mark.export
def test_ctrl_c(tmp_path: Path) -> None:
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
    end = time.monotonic() + 120
    while not started.exists():
        assert time.monotonic() < end, told.read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert (process.wait(60), told.read_text()) == (130, "interrupted\n")
    written = document(tmp_path / "out")
    assert [step["state"] for step in written["steps"]] == ["failed", "not run"]
    assert (written["exit_code"], written["steps"][0]["failure"]["exit_code"]) == (130, 130)
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert left == {".lock", "pipeline.json", "deploy.json"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom rmsnorm_export.cli.main import main\n"
        "assert main(['deploy', '--help']) == 0\n"
        "heavy = {'onnx', 'onnx_ir', 'numpy', 'rich', 'onnxruntime', 'torch', 'tomllib'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PIPELINE.toml" in done.stdout


def test_init_writes_a_file_that_runs(run: Run, three: Path) -> None:
    done = run("deploy", "my pipeline.toml", "--init")
    assert (done.code, done.stderr) == (0, "")
    place = three.parent / "my pipeline.toml"
    begun = place.read_text()
    assert 'name = "my-pipeline"' in begun
    assert "# target: " in begun
    assert "\n#   Loosest change of rounding allowed." in begun
    run("deploy", place, "--init").assert_error(2, "my pipeline.toml", "--force")
    assert place.read_text() == begun
    run("deploy", place).assert_error(3, "model.onnx")
    done = run("deploy", place, "--set", "model.path=three.onnx", "--until", "optimize")
    assert done.code == 0, done.stderr
    assert "3 of 3 RMSNorms" in done.text


def test_set_is_as_if_it_stood_in_the_file(run: Run, three: Path) -> None:
    (three.parent / "p.toml").write_text(
        '[pipeline]\nname = "p"\n[model]\npath = "three.onnx"\n[optimize]\n'
    )
    changes = ("--set", "optimize.target=ort", "--set", "optimize.require=3")
    done = run("deploy", "p.toml", *changes, "--set", 'pipeline.folder="elsewhere"')
    assert done.code == 0, done.stderr
    ops = [
        node.op_type for node in onnx.load(three.parent / "elsewhere/optimize/p.onnx").graph.node
    ]
    assert ops.count("SimplifiedLayerNormalization") == 3
    again = run("deploy", "p.toml", *changes, "--set", "pipeline.folder=elsewhere", "--dry-run")
    assert "0 of 1 step would run" in again.text
    for change, words in (
        ("optimize.taget=ort", "did you mean target?"),
        ("optimze.target=ort", "did you mean [optimize]?"),
        ("optimize.target=orrt", "optimize"),
        ("optimize.require=0", "require"),
        ("target=ort", "TABLE.KEY=VALUE"),
        ("optimize.target", "TABLE.KEY=VALUE"),
    ):
        run("deploy", "p.toml", "--set", change).assert_error(2, words)

"""``deploy`` as a program: output, documents, pages and exit codes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import Run
from tests.deploy.pipelines import EXPORT, MODEL, OPTIMIZE, PROVED, document, write
from tests.show.html_pages import Page

STRICT = "[verify]\natol = 0.0\nshapes = { x = [64, 40] }"


def test_errors(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    run("deploy", "none.toml").assert_error(3, "pipeline file cannot be read")
    wrong = write(tmp_path, MODEL, "[optimize]\nnumeric = 'exact'")
    run("deploy", wrong).assert_error(
        2, "In pipeline.toml, [optimize] numeric", "did you mean 'numerics'?"
    )
    done = run("deploy", wrong, "--format", "json")
    assert (done.code, done.json["kind"]) == (2, "error")
    write(tmp_path, MODEL, "[optimize]\nrequire = 4")
    done = run("deploy", path)
    done.assert_error(5, "Step optimize: [optimize] --require 4 is not met", "3 norms are one node")
    assert "net: optimize FAILED" in done.text


def test_html(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, PROVED, STRICT)
    done = run("deploy", path, "--report", "page.html")
    assert done.code == 4
    page = (tmp_path / "page.html").read_text()
    read = Page(page)  # every element is closed, in order
    assert "net: verify FAILED" in read.text
    assert "3 of 3 RMSNorms are one node" in read.text
    assert "Fix" in read.text
    run("deploy", path, "--report", "page.html").assert_error(2, "--force")
    run("deploy", path, "--report", path, "--force").assert_error(2, "would overwrite a model")
    assert "[optimize]" in path.read_text()
    assert run("deploy", path, "--report", "page.html", "--force").code == 4


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

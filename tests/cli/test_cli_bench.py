"""The ``bench`` command: its files, its exit codes, and what it does before it measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from rmsnorm_export.benchmark import measure

from .conftest import Run, model

FAST = ("--rounds", 9, "--threads", 1, "--provider", "cpu")


def test_a_table_and_every_file(run: Run, three: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = ("--report", "a.json", "--png", "a.png", "--html", "a.html")
    done = run("bench", three, *FAST, "--targets", "ort,onnx", "--shapes", "x=1x40,3x40", *files)
    assert done.code == 0, done.stderr
    assert done.text.startswith("cpu: ")
    assert done.text.count("95 % interval") == 2
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (report["schema_version"], report["kind"]) == (1, "benchmark")
    assert {t["variant"] for t in report["timings"]} == {"raw", "raw again", "ort", "onnx"}
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.html").read_text(encoding="utf-8")
    again = run("bench", three, *FAST, "--png", "a.png")
    again.assert_error(2, "a.png exists")


def test_json_on_stdout_from_a_pipe(run: Run, three: Path) -> None:
    done = run(
        "bench", "-", *FAST, "--targets", "portable", "--format", "json", stdin=three.read_bytes()
    )
    assert done.code == 0, done.stderr
    assert done.json["kind"] == "benchmark"
    assert done.json["passed"] is True


def test_quiet_is_one_line(run: Run, three: Path) -> None:
    done = run("bench", three, *FAST, "--targets", "ort", "-q")
    assert done.code == 0
    assert len(done.text.splitlines()) == 1


def test_wrong_outputs_decide_the_exit_code(
    run: Run, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(3, scale=3.0), tmp_path / "wrong.onnx")
    real = measure.make_target

    def wrong(_: Any, *rest: Any) -> Any:
        return real(tmp_path / "wrong.onnx", *rest)

    monkeypatch.setattr(measure, "make_target", wrong)
    done = run("bench", three, *FAST, "--targets", "ort", "--html", "a.html")
    done.assert_error(4, "ort on cpu")
    assert "WRONG OUTPUTS" in done.text
    assert "A target gives other outputs" in (tmp_path / "a.html").read_text(encoding="utf-8")
    done = run("bench", three, *FAST, "--targets", "ort", "--format", "json")
    assert done.code == 4
    assert done.json["error"]["exit_code"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--seconds", 0), 2, "above 0"),
        (("--shapes", "x=4x7"), 2, "does not fit input 'x'"),
        (("--shapes", "y=4x7"), 2, "no input 'y'"),
        (("--shapes", "x=4"), 2, "does not fit"),
        (("--targets", "none"), 2, "nothing to compare"),
        (("--targets", "tensorrt"), 2, "portable, onnx, ort"),
        (("--peers", "nobody"), 2, "onnxsim"),
        (("--provider", "gpu"), 2, "cuda"),
        (("--png", "no/such.png"), 3, "mkdir -p no"),
        (("--png", "x", "--html", "x"), 2, "--html would overwrite"),
    ],
)
def test_what_cannot_be_used(
    arguments: tuple[object, ...], code: int, words: str, run: Run, three: Path
) -> None:
    run("bench", three, *arguments).assert_error(code, words)


def test_unreadable_models(run: Run, three: Path, tmp_path: Path) -> None:
    run("bench", "missing.onnx").assert_error(3, "missing.onnx")
    (tmp_path / "cut.onnx").write_bytes(three.read_bytes()[:500])
    run("bench", "cut.onnx").assert_error(3)


def test_a_plot_without_matplotlib_is_refused_before_the_work(
    run: Run, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(measure, "bench", None)
    run("bench", three, "--png", "a.png").assert_error(6, "pip install 'matplotlib>=3.8'")

"""The ``bench`` command: its files, its exit codes, and what it does before it measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from rmsnorm_export.benchmark import measure

from .conftest import Run, model

FAST = ("--seconds", 0.1, "--threads", 1, "--provider", "cpu")


def test_a_table_and_every_file(run: Run, three: Path, tmp_path: Path) -> None:
    files = ("--report", "a.json", "--report", "a.html")
    done = run("bench", three, *FAST, "--target", "ort,onnx", "--shapes", "x=1x40,3x40", *files)
    assert done.code == 0, done.stderr
    assert done.text.startswith("cpu: ")
    assert done.text.count("95 % interval") == 2
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (report["schema_version"], report["kind"]) == (1, "benchmark")
    assert {t["variant"] for t in report["timings"]} == {"raw", "raw again", "ort", "onnx"}
    assert "95 % interval" in (tmp_path / "a.html").read_text(encoding="utf-8")
    again = run("bench", three, *FAST, "--report", "a.html")
    again.assert_error(2, "a.html exists")


def test_wrong_outputs_decide_the_exit_code(
    run: Run, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(3, scale=3.0), tmp_path / "wrong.onnx")
    real = measure.make_target

    def wrong(_: Any, *rest: Any) -> Any:
        return real(tmp_path / "wrong.onnx", *rest)

    monkeypatch.setattr(measure, "make_target", wrong)
    done = run("bench", three, *FAST, "--target", "ort", "--report", "a.html")
    done.assert_error(4, "ort on cpu")
    assert "WRONG OUTPUTS" in done.text
    assert "A target gives other outputs" in (tmp_path / "a.html").read_text(encoding="utf-8")
    done = run("bench", three, *FAST, "--target", "ort", "--format", "json")
    assert done.code == 4
    assert done.json["error"]["exit_code"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--seconds", 0), 2, "above 0"),
        (("--shapes", "x=4x7"), 2, "does not fit input 'x'"),
        (("--shapes", "y=4x7"), 2, "no input 'y'"),
        (("--shapes", "x=4"), 2, "does not fit"),
        (("--target", "none"), 2, "nothing to compare"),
        (("--target", "tensorrt"), 2, "portable, onnx, ort"),
        (("--provider", "gpu"), 2, "cuda"),
        (("--report", "no/such.html"), 3, "no folder no"),
        (("--report", "x.png"), 2, "no picture"),
        (("--report", "x", "--report", "x"), 2, "would overwrite"),
    ],
)
def test_what_cannot_be_used(
    arguments: tuple[object, ...], code: int, words: str, run: Run, three: Path
) -> None:
    run("bench", three, *arguments).assert_error(code, words)

"""``verify``, ``inspect`` and ``doctor`` as programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from rmsnorm_export import Verification
from rmsnorm_export import diagnosis as doctor
from rmsnorm_export.diagnosis import Diagnosis, _Package
from rmsnorm_export.records import from_json

from .conftest import Run, model


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """As ``three``, with weights larger by one percent."""
    path = tmp_path / "other.onnx"
    onnx.save(model(3, scale=1.01), path)
    return path


def test_a_model_and_its_optimized_form_agree(run: Run, three: Path) -> None:
    assert run("optimize", three, "-o", "out.onnx").code == 0
    done = run("verify", three, "out.onnx")
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("the models agree: 1 of 1 output within bounds\n")
    assert "x float32 [2, 40]" in done.text
    as_json = run("verify", three, "out.onnx", "--format", "json")
    outcome = from_json(as_json.text, Verification)
    assert outcome.passed
    assert outcome.outputs[0].metrics.max_abs <= outcome.outputs[0].bound_abs
    assert "elements by ulp  0: " in run("verify", three, "out.onnx", "-v").text


def test_models_that_differ(run: Run, three: Path, other: Path) -> None:
    done = run("verify", three, other)
    done.assert_error(4, "out: largest difference")
    assert done.text.startswith("the models DIFFER: 0 of 1 output within bounds\n")
    assert "FAILED" in done.text
    as_json = run("verify", three, other, "--format", "json")
    as_json.assert_error(4)
    assert as_json.json["error"]["exit_code"] == 4
    assert not from_json(as_json.text, Verification).passed


def test_a_model_that_cannot_be_run_here(run: Run, tmp_path: Path) -> None:
    """It neither agrees nor differs: a word and an exit code of its own, and no report is lost."""
    node = helper.make_node("Bend", ["x"], ["out"], domain="their.own")
    bent = model(1)
    bent.graph.node[-1].CopyFrom(node)
    bent.graph.node[-1].input[0] = bent.graph.input[0].name
    bent.opset_import.append(helper.make_opsetid("their.own", 1))
    onnx.save(bent, tmp_path / "bent.onnx")
    done = run("verify", "bent.onnx", "bent.onnx", "--report", "page.html")
    done.assert_error(7, "could not be run here", "their.own:Bend")
    assert done.text.startswith("the models could NOT BE RUN here: ")
    assert "could NOT BE RUN here" in (tmp_path / "page.html").read_text()
    as_json = run("verify", "bent.onnx", "bent.onnx", "--format", "json")
    as_json.assert_error(7)
    assert as_json.json["verdict"] == "not run"
    assert as_json.json["error"]["exit_code"] == 7
    assert from_json(as_json.text, Verification).verdict == "not run"


def test_inputs_and_shapes(run: Run, three: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((7, 40), np.float32))
    done = run("verify", three, three, "--inputs", "in.npz")
    assert done.code == 0
    assert "x float32 [7, 40]" in done.text
    assert "in.npz" in done.text
    done = run("verify", three, three, "--shapes", "x=3x40")
    assert "x float32 [3, 40]" in done.text
    run("verify", three, three, "--shapes", "y=3x40").assert_error(2, "y")
    run("verify", three, three, "--shapes", "x=3", "--inputs", "in.npz").assert_error(2)
    run("verify", three, three, "--shapes", "x=3xa").assert_error(2, "'x=3xa'", "NAME=1x1")
    run("verify", three, three, "--shapes", "z=3x40").assert_error(2, "no input 'z'")
    run("verify", three, three, "--inputs", "missing.npz").assert_error(3, "missing.npz")
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 41), np.float32))
    run("verify", three, three, "--inputs", "wrong.npz").assert_error(3, "41")


SMALL = (
    _Package("onnx", "models", "onnx", True),
    _Package("onnxruntime", "running", "onnxruntime", remark="'probed'"),
    _Package("no_such_package", "nothing", "nothing"),
)


def test_doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_COMPONENTS", SMALL)
    done = run("doctor", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    diagnosis = from_json(done.text, Diagnosis)
    assert diagnosis.works
    assert [c.status for c in diagnosis.components] == ["ok", "ok", "missing"]
    assert diagnosis.components[0].version == onnx.__version__
    assert diagnosis.components[1].detail == "probed"
    assert [test.name for test in diagnosis.self_tests] == [
        "target portable",
        "target onnx",
        "target ort",
        "target plain",
    ]
    assert all(test.passed and "float64" in test.detail for test in diagnosis.self_tests)
    text = run("doctor").text
    assert "the core works; 2 of 3 packages" in text
    assert "for nothing: pip install nothing" in text

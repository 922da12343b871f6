"""``verify``, ``inspect`` and ``doctor`` as programs."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rmsnorm_export import Verification
from rmsnorm_export import diagnosis as doctor
from rmsnorm_export.diagnosis import Diagnosis, _Known
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX, gpu_visible

from .conftest import Run, model

RTX_HERE = is_installed("tensorrt_rtx") and is_installed("polygraphy")


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
    done = run("verify", "bent.onnx", "bent.onnx", "--html", "page.html")
    done.assert_error(7, "could not be run here", "their.own:Bend")
    assert done.text.startswith("the models could NOT BE RUN here: ")
    assert "could NOT BE RUN here" in (tmp_path / "page.html").read_text()
    as_json = run("verify", "bent.onnx", "bent.onnx", "--format", "json")
    as_json.assert_error(7)
    assert as_json.json["verdict"] == "not run"
    assert as_json.json["error"]["exit_code"] == 7
    assert from_json(as_json.text, Verification).verdict == "not run"


def test_bounds(run: Run, three: Path, other: Path) -> None:
    assert run("verify", three, other, "--rtol", "0.1").code == 0
    assert run("verify", three, other, "--atol", "0.1").code == 0
    run("verify", three, other, "--atol", "1e-9").assert_error(4)
    run("verify", three, other, "--rtol", "0.1", "--max-ulp", "1").assert_error(4, "ulp")
    run("verify", three, other, "--rtol", "-1").assert_error(2, "rtol")
    run("verify", three, other, "--rtol", "nan").assert_error(2, "rtol")


def test_inputs_and_shapes(run: Run, three: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((7, 40), np.float32))
    done = run("verify", three, three, "--inputs", "in.npz")
    assert done.code == 0
    assert "x float32 [7, 40]" in done.text
    assert "in.npz" in done.text
    done = run("verify", three, three, "--shape", "x=3x40", "--seed", "5")
    assert "x float32 [3, 40]" in done.text
    assert "seed 5" in done.text
    run("verify", three, three, "--shape", "y=3x40").assert_error(2, "y")
    run("verify", three, three, "--shape", "x=3", "--inputs", "in.npz").assert_error(2)
    run("verify", three, three, "--shape", "x=3xa").assert_error(2, "'x=3xa'", "NAME=1x1")
    wrong = run("verify", three, three, "--shape", "z=3x40")
    wrong.assert_error(2, "no input 'z'")
    paste = shlex.split(wrong.stderr[wrong.stderr.rindex("--shape") :])
    assert run("verify", three, three, *paste).code == 0
    run("verify", three, three, "--inputs", "missing.npz").assert_error(3, "missing.npz")
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 41), np.float32))
    run("verify", three, three, "--inputs", "wrong.npz").assert_error(3, "41")


def test_a_model_from_stdin(run: Run, three: Path) -> None:
    assert run("verify", "-", three, stdin=three.read_bytes()).code == 0
    assert run("verify", three, "-", stdin=three.read_bytes()).code == 0


MODULES = """
import torch


def tower(n=40, factor=1.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.RMSNorm(n, eps=1e-6), torch.nn.Linear(n, 8))
    with torch.no_grad():
        model[1].weight *= factor
    return model


def other():
    return tower(factor=1.5)


def with_inputs():
    return tower(), (torch.ones(3, 40),)
"""


@pytest.mark.export
def test_pytorch_sources(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    (tmp_path / "verify_modules.py").write_text(MODULES)
    shapes = ["--shapes", "input=float32[rows=1..9,40]"]
    assert run("export", "verify_modules:tower", "-o", "t.onnx", *shapes).code == 0
    done = run("verify", "verify_modules:tower", "t.onnx", "--shape", "input=4x40")
    assert (done.code, done.stderr) == (0, "")
    assert "  A  verify_modules:tower (torch)\n" in done.text
    assert "  B  t.onnx (graph optimization on)\n" in done.text
    assert " and onnxruntime " in done.text
    wrong = run("verify", "t.onnx", "verify_modules:other", "-v")
    wrong.assert_error(4, "'output' differs", "'output'")
    assert "first difference: 'output' differs" in wrong.text
    assert ", module 1)" in wrong.text
    assert "allowed  float32: 0.0001 of the largest element" in wrong.text
    examples = run("verify", "verify_modules:with_inputs", "verify_modules:with_inputs")
    assert "the example inputs of the module" in examples.text
    run("verify", "verify_modules:none", "t.onnx").assert_error(2, "none")
    run("verify", "verify_modules:tower", "verify_modules:other").assert_error(2, "not known")
    run("verify", "missing.pt2", "t.onnx").assert_error(3, "missing.pt2")
    (tmp_path / "config.json").write_text("{}")
    run("verify", "config.json", "t.onnx").assert_error(3, "config.json")


def test_the_first_difference(run: Run, tmp_path: Path) -> None:
    """One of three norms is wrong: text, JSON and page say which."""
    right = model(3)
    onnx.save(right, tmp_path / "right.onnx")
    wrong = model(3)
    second = next(node for node in wrong.graph.node if node.name == "/layers.1/norm/Add_2")
    # not the epsilon that all have, but one of its own
    wrong.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    second.input[1] = "other"
    onnx.save(wrong, tmp_path / "wrong.onnx")
    assert run("optimize", "wrong.onnx", "-o", "fused.onnx").code == 0
    done = run("verify", "right.onnx", "fused.onnx", "--html", "page.html")
    done.assert_error(4, "this site differs: RMSNorm '/layers.1/norm/Mul_6/RMSNorm'")
    assert "first difference: this site differs: RMSNorm" in done.text
    assert "  value   /layers.1/norm/y (RMSNorm /layers.1/norm/Mul_6/RMSNorm)\n" in done.text
    assert "shared values compared" in done.text
    page = (tmp_path / "page.html").read_text()
    assert "<h3>First difference</h3>" in page
    assert "this site differs: RMSNorm" in page
    assert "1700 units of roundoff" in page
    as_json = run("verify", "right.onnx", "fused.onnx", "--format", "json").json
    first = as_json["first_difference"]
    assert first["site"] == {
        "name": "/layers.1/norm/Mul_6/RMSNorm",
        "op": "RMSNorm",
        "module": None,
        "place": "at",
    }
    assert first["inputs"] == ["/layers.0/tanh"]
    assert first["inputs_agree"] is True
    assert as_json["backends"] == ["onnxruntime", "onnxruntime"]
    assert as_json["outputs"][0]["tolerance"].startswith("float32: 0.0001 of the largest element")
    without = run("verify", "right.onnx", "fused.onnx", "--no-bisect", "--format", "json")
    without.assert_error(4, "see the table for where")
    assert without.json["first_difference"] is None


@pytest.mark.skipif(gpu_visible(), reason="what is said without a GPU")
def test_missing_backends(run: Run, three: Path) -> None:
    cuda = run("verify", three, three, "--backend-b", "onnxruntime-cuda")
    cuda.assert_error(6, "CUDA")
    for backend in ("tensorrt", "tensorrt-rtx"):
        run("verify", three, three, "--backend-a", backend).assert_error(6, "TensorRT")
    run("verify", three, three, "--backend-a", "torch").assert_error(2)
    run("verify", three, three, "--backend-a", "cuda").assert_error(2, "cuda")


@pytest.mark.skipif(not RTX_HERE, reason=f"builds an engine: {RTX.pip}")
def test_engines(run: Run, three: Path) -> None:
    built = run(
        "build", three, "-o", "e.plan", "--backend", "tensorrt-rtx", "--shapes", "x=1x40,2x40,9x40"
    )
    assert built.code == 0, built.stderr
    if not gpu_visible():
        done = run("verify", three, "e.plan")
        done.assert_error(6, "only where a GPU is", "nothing else stands against it")
    run("verify", three, "e.plan", "--backend-b", "onnxruntime").assert_error(2, "runs no engine")
    Path("e.plan").write_bytes(b"vtrt" + b"\0" * 99)
    run("verify", three, "e.plan").assert_error(3, "cannot be used here")
    run("verify", three, "missing.engine").assert_error(3, "missing.engine")


def test_inspect_changes_nothing_and_says_so(run: Run, mixed: Path) -> None:
    before = mixed.read_bytes()
    done = run("inspect", mixed)
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("2 of 3 RMSNorms can be one node: 2 fusable, 1 refused")
    assert "epsilon-not-constant: " in done.text
    assert "nodes  /odd.0/norm/Add_2\n" in done.text
    assert mixed.read_bytes() == before
    assert [p.name for p in mixed.parent.iterdir()] == ["mixed.onnx"]
    report = from_json(run("inspect", mixed, "--format", "json").text, Report)
    assert (report.target, len(report.fused), len(report.refused)) == (None, 2, 1)


@pytest.mark.parametrize(
    ("target", "op"),
    [
        ("portable", "RMSNorm"),
        ("onnx", "RMSNormalization"),
        ("ort", "SimplifiedLayerNormalization"),
    ],
)
def test_inspect_for_a_target(run: Run, three: Path, target: str, op: str) -> None:
    report = from_json(run("inspect", three, "--target", target, "--format", "json").text, Report)
    assert report.target == target
    assert [site.op for site in report.fused] == [op] * 3


def test_what_is_one_node_already_is_kept(run: Run, three: Path) -> None:
    run("optimize", three, "-o", "out.onnx", "--target", "onnx")
    report = from_json(
        run("inspect", "out.onnx", "--target", "onnx", "--format", "json").text, Report
    )
    assert (len(report.fused), len(report.kept)) == (0, 3)
    assert "3 already one node" in run("inspect", "out.onnx", "--target", "onnx", "-q").text


def test_inspect_from_stdin(run: Run, three: Path) -> None:
    done = run("inspect", "-", "--format", "json", stdin=three.read_bytes())
    assert done.json["source"] == "stdin"


SMALL = (
    _Known("onnx", True, "models", "onnx"),
    _Known("onnxruntime", False, "running", "onnxruntime", "'probed'"),
    _Known("no_such_package", False, "nothing", "nothing"),
)


def test_doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_KNOWN", SMALL)
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
    assert all(test.passed and "right within" in test.detail for test in diagnosis.self_tests)
    text = run("doctor").text
    assert "the core works; 2 of 3 packages" in text
    assert "for nothing: pip install nothing" in text


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("raise RuntimeError('driver\\x1b[2J gone')", "driver\\x1b[2J gone"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.abort()", "exit code -6"),
        ("import no_such_dependency", "no_such_dependency"),
    ],
)
def test_a_broken_package_is_reported_and_ends_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, word: str
) -> None:
    (tmp_path / "broken_package.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = _Known("broken_package", False, "breaking", "whole")
    monkeypatch.setattr(doctor, "_KNOWN", (*SMALL[:1], broken))
    done = run("doctor")
    assert (done.code, done.stderr) == (0, "")
    assert "broken" in done.text
    assert word in done.text
    assert "pip install whole" in done.text
    needed = _Known("broken_package", True, "breaking", "whole")
    monkeypatch.setattr(doctor, "_KNOWN", (*SMALL[:1], needed))
    run("doctor").assert_error(6, "broken_package is broken", "pip install whole")


def test_a_package_that_hangs_is_reported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_package.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = _Known("hanging_package", False, "waiting", "it")
    monkeypatch.setattr(doctor, "_KNOWN", (known,))
    monkeypatch.setattr(doctor, "_TIMEOUT", 1)
    done = run("doctor")
    assert done.code == 0
    assert "did not end within 1 s" in done.text


def test_a_failing_self_test_ends_with_4(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_KNOWN", SMALL)
    monkeypatch.setattr(doctor, "_expected", lambda x: x)
    done = run("doctor", "--format", "json")
    done.assert_error(4, "target portable", "wrong by")
    assert done.json["works"] is False
    assert done.json["error"]["exit_code"] == 4


def test_a_folder_in_the_working_directory_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "tensorrt").mkdir()
    assert importlib.util.find_spec("rmsnorm_export") is not None
    known = _Known("tensorrt_of_the_working_directory", False, "x", "y")
    assert doctor._start(known) is None

"""Each command as a program: its output, reports and exit codes; nothing else is touched."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export import diagnosis
from rmsnorm_export.benchmark import model as bench_of_models
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import from_json
from rmsnorm_export.tensorrt.plugin.libraries import Built
from tests.deploy.models import write
from tests.engine.conftest import needs_rtx
from tests.plugins.test_plugin import project  # noqa: F401
from tests.plugins.test_plugin import pytestmark as needs_compiler
from tests.show.samples import Page

from .conftest import Run, model

FAST = ("--seconds", 0.1, "--threads", 1, "--provider", "cpu")


def op_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_optimize(run: Run, three: Path) -> None:
    before = three.read_bytes()
    done = run("optimize", three, "-o", "out.onnx", "--target", "onnx", "--require", "all")
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("3 of 3 RMSNorms are one node\n")
    assert f"wrote {three.parent / 'out.onnx'} (" in done.text
    assert op_types(three.parent / "out.onnx").count("RMSNormalization") == 3
    assert three.read_bytes() == before
    assert sorted(p.name for p in three.parent.iterdir()) == ["out.onnx", "three.onnx"]
    back = run("optimize", "out.onnx", "-o", "plain.onnx", "--target", "plain", "--site", "*")
    assert (back.code, back.stderr) == (0, "")
    assert op_types(three.parent / "plain.onnx").count("ReduceMean") == 3


def test_verbosity_before_and_after_the_command(run: Run, three: Path) -> None:
    plain = run("inspect", three).text
    assert "/ReduceMean_1" not in plain
    assert run("-q", "inspect", three).text == plain.splitlines(keepends=True)[0]
    assert run("inspect", "-v", three).text.count("/ReduceMean_1") == 3
    assert run("-v", "inspect", three, "-q").text.count("\n") == plain.count("\n")


def test_with_the_model_on_stdout_the_document_is_all_of_stderr(run: Run, mixed: Path) -> None:
    done = run("optimize", "-", "-o", "-", "--format", "json", stdin=mixed.read_bytes())
    onnx.load_model_from_string(done.stdout)
    assert json.loads(done.stderr)["output"] == {"path": "-", "bytes": len(done.stdout)}
    unmet = run("optimize", mixed, "-o", "-", "--format", "json", "--require", "all")
    assert (unmet.code, unmet.stdout) == (5, b"")
    assert json.loads(unmet.stderr)["error"]["exit_code"] == 5
    missing = run("optimize", "missing.onnx", "-o", "-", "--format", "json")
    assert (missing.code, missing.stdout) == (3, b"")
    assert json.loads(missing.stderr)["kind"] == "error"


def test_require_that_is_not_met_writes_reports_and_no_model(run: Run, mixed: Path) -> None:
    done = run("optimize", mixed, "-o", "out.onnx", "--require", "all", "--report", "r.json")
    done.assert_error(5, "--require all", "2 norms", "epsilon-not-constant")
    assert "nothing was written" in done.text
    assert sorted(p.name for p in mixed.parent.iterdir()) == ["mixed.onnx", "r.json"]
    report = json.loads((mixed.parent / "r.json").read_text())
    assert (report["output"], report["error"]["exit_code"]) == (None, 5)
    several = run("inspect", mixed, mixed.rename(mixed.with_name("b.onnx")), "-q")
    several.assert_error(3, "mixed.onnx")
    assert several.text == "2 of 3 RMSNorms can be one node, in 1 graph\n"


def test_a_proof_that_fails(run: Run, three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Proof:
        proof = prove_site(*arguments, **options)
        return dataclasses.replace(proof, passed=False, reason="9 ulp apart")

    monkeypatch.setattr("rmsnorm_export.proof.prove.prove_site", fail)
    done = run("optimize", three, "-o", "out.onnx", "--prove", "--format", "json")
    done.assert_error(4, "3 proofs failed", "9 ulp apart")
    assert done.json["error"]["exit_code"] == 4
    assert [refusal["reason"] for refusal in done.json["refused"]] == ["proof-failed"] * 3
    assert op_types(three.parent / "out.onnx").count("ReduceMean") == 3
    unmet = run("optimize", three, "-o", "o2.onnx", "--prove", "--require", "1")
    unmet.assert_error(5, "proof-failed")
    assert not (three.parent / "o2.onnx").exists()


def test_verify(run: Run, three: Path, tmp_path: Path) -> None:
    assert run("optimize", three, "-o", "out.onnx").code == 0
    np.savez(tmp_path / "in.npz", x=np.ones((7, 40), np.float32))
    sizes = {"": "[2, 40]", "--shapes x=3x40": "[3, 40]", "--inputs in.npz": "[7, 40]"}
    for options, fed in sizes.items():
        done = run("verify", three, "out.onnx", *options.split())
        assert (done.code, done.stderr) == (0, "")
        assert f"x float32 {fed}" in done.text
    onnx.save(model(3, scale=1.01), tmp_path / "other.onnx")
    done = run("verify", three, "other.onnx", "--format", "json", "--report", "page.html")
    done.assert_error(4, "out: largest difference")
    assert not from_json(done.text, rx.Verification).passed
    assert "the models DIFFER: 0 of 1 output" in Page((tmp_path / "page.html").read_text()).text


def test_bench(run: Run, three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("--report", "a.json", "--report", "a.html")
    done = run("bench", three, *FAST, "--target", "ort,onnx", "--shapes", "x=1x40,3x40", *files)
    assert done.code == 0, done.stderr
    report = json.loads(three.with_name("a.json").read_text(encoding="utf-8"))
    assert {t["variant"] for t in report["timings"]} == {"raw", "raw again", "ort", "onnx"}
    assert "95 % interval" in three.with_name("a.html").read_text(encoding="utf-8")
    onnx.save(model(3, scale=3.0), three.with_name("wrong.onnx"))
    real, wrong = bench_of_models.optimize, three.with_name("wrong.onnx")
    monkeypatch.setattr(bench_of_models, "optimize", lambda _, **how: real(wrong, **how))
    done = run("bench", three, *FAST, "--target", "ort", *files, "--force")
    done.assert_error(4, "ort on cpu")
    assert "WRONG OUTPUTS" in done.text
    report = json.loads(three.with_name("a.json").read_text(encoding="utf-8"))
    assert report["error"]["exit_code"] == 4


def test_deploy(run: Run, tmp_path: Path) -> None:
    strict = "[verify]\natol = 0.0\nshapes = { x = [64, 40] }"
    path = write(tmp_path, "model", "proved", strict)
    arguments = ("deploy", path, "--report", "page.html")
    assert run(*arguments).code == 4
    page = Page((tmp_path / "page.html").read_text()).text
    for words in ("net: verify FAILED", "3 of 3 RMSNorms are one node", "fix "):
        assert words in page
    assert run(*arguments).code == 4
    assert (tmp_path / "page.html").read_text().count("net: verify FAILED") > 0


@needs_compiler
def test_plugin(run: Run, project: Path) -> None:  # noqa: F811
    build = ("plugin", "build", "--runtime", "onnxruntime")
    done = run(*build, "--format", "json")
    assert done.code == 0
    assert done.stderr.startswith("compiling onnxruntime for this kind of processor: about ")
    built = from_json(done.text, Built)
    assert str(built.path("register")) in run(*build).text
    assert run("-q", *build).stderr == ""
    project.write_text("int x = no_such_name;\n")
    run("-q", *build).assert_error(1, "did not compile", "no_such_name", "read the log, /")


def test_doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_OPTIONAL", ("onnxruntime", "no_such_package"))
    done = run("doctor", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    diagnosed = from_json(done.text, diagnosis.Diagnosis)
    assert diagnosed.packages["onnx"] == onnx.__version__
    assert diagnosed.packages["no_such_package"] == ""
    assert diagnosed.self_tests == dict.fromkeys(("portable", "onnx", "ort", "plain"), "")
    monkeypatch.setattr(diagnosis, "_MODEL", diagnosis._MODEL.replace("ReduceMean", "ReduceMax"))
    run("doctor").assert_error(4, "The self test failed", "was not made one node")


def test_inspect_for_a_runtime_is_a_check_of_it(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("inspect", three, "--for", "onnxruntime", "--require", "all")
    assert done.code == 0, done.stderr
    assert "3 of 3 RMSNorms can be one node" in done.text
    assert "target ort" in done.text
    assert "next:" not in done.text  # what it is for is said
    assert [path.name for path in tmp_path.iterdir()] == ["three.onnx"]
    foreign = onnx.load(three)
    foreign.graph.node[-1].op_type, foreign.graph.node[-1].domain = "NoSuchThing", "com.microsoft"
    foreign.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(foreign, three)
    assert run("inspect", three).code == 0
    run("inspect", three, "--for", "onnxruntime").assert_error(3, "cannot run this model")


def test_next_is_never_what_was_done(run: Run, three: Path) -> None:
    assert "next: optimize --for onnxruntime\n" in run("inspect", three).text
    done = run("optimize", three, "-o", "fused.onnx", "--prove")
    assert "next: run it in onnxruntime" in done.text
    lines = [line.split() for line in done.text.splitlines()]
    assert ["norms", "as", "one", "kernel", "0", "3"] in lines
    assert "25 nodes -> 7 + " in done.text
    files = (three, three.with_name("fused.onnx"))
    sizes = [str(round(path.stat().st_size / 1024, 1)) for path in files]
    assert ["KiB", "with", "weights", *sizes] in lines
    assert "next: run it in onnxruntime" in run("inspect", "fused.onnx").text
    again = run("optimize", "fused.onnx", "-o", "again.onnx", "--prove").text
    assert "note: nothing was rewritten, so that there was nothing to prove" in again
    assert "next:" not in run("optimize", three, "-o", "o.onnx", "--for", "onnxruntime").text


# ``build`` as a program: an engine with its record.

SHAPES = "x=1x40,4x40,128x40"


@needs_rtx
def test_build(run: Run, three: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--shapes", "x=1x40", "--shapes", SHAPES)
    assert (done.code, done.stderr) == (0, "")
    assert len(json.loads(three.with_name("e.engine.json").read_text())["profiles"]) == 2
    assert {p.name for p in three.parent.iterdir()} == {"three.onnx", "e.engine", "e.engine.json"}
    done = run(
        "build", "-", "-o", "f.engine", "--shapes", SHAPES, "--memory-limit", "0.5",
        "--format", "json", stdin=three.read_bytes(),
    )  # fmt: skip
    assert (done.code, done.stderr) == (0, "")
    written = json.loads(three.with_name("f.engine.json").read_text())
    assert (written.pop("kind"), written.pop("schema_version")) == ("engine_record", 1)
    assert done.json["record"] == written
    assert written["flags"]["memory_limit"] == 0.5


@needs_rtx
def test_the_caller_imports_no_backend(three: Path) -> None:
    code = (
        "import sys, os\nbefore = dict(os.environ)\n"
        "from rmsnorm_export.api import build_engine\n"
        f"build_engine({str(three)!r}, {str(three.parent / 'e')!r}, shapes={SHAPES!r})\n"
        "print({'tensorrt_rtx', 'tensorrt', 'polygraphy'} & set(sys.modules))\n"
        "print(dict(os.environ) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "True"]

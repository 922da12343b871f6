"""``run_pipeline``: what runs, what is skipped and why, and what is left after a failure."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.pipeline import identity
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from tests.cli.conftest import model
from tests.pipeline.pipelines import (
    BUILD,
    EXPORT,
    MODEL,
    OPTIMIZE,
    PACKAGE,
    PROVE,
    VERIFY,
    assert_consistent,
    document,
    ran,
    states,
    write,
)
from tests.serving.models import needs_triton, save_external

SHORT = (MODEL, OPTIMIZE, PROVE, VERIFY, PACKAGE)


def why(deployment: rx.Deployment, step: str) -> str:
    return deployment.step(step).why


@needs_triton
def test_a_pipeline_and_the_run_after_it(tmp_path: Path) -> None:
    path = write(tmp_path, *SHORT)
    told: list[str] = []
    first = rx.run_pipeline(path, told=lambda step: told.append(step.name))
    assert first.passed, first.failed
    assert (first.exit_code, first.dry_run, first.folder) == (0, False, tmp_path / "out")
    assert told == ["optimize", "prove", "verify", "package"] == ran(first)
    assert first.step("optimize").summary == "3 of 3 RMSNorms are one node"
    assert first.step("prove").facts["proofs"] == 3
    assert "raw = optimized" in first.step("verify").summary
    optimized = onnx.load(tmp_path / "out/optimize/net.onnx")
    assert [node.op_type for node in optimized.graph.node].count("RMSNorm") == 3
    served = tmp_path / "out/repository/net/1"
    assert (served / "model.onnx").read_bytes() == (tmp_path / "out/optimize/net.onnx").read_bytes()
    assert json.loads((served / "report.json").read_text())["fused"][0]["proof"]["passed"]
    assert document(tmp_path / "out")["kind"] == "deployment"
    assert_consistent(tmp_path / "out")
    second = rx.run_pipeline(path)
    assert set(states(second).values()) == {"skipped"}
    assert [s.summary for s in second.steps] == [s.summary for s in first.steps]
    assert [s.outputs for s in second.steps] == [s.outputs for s in first.steps]
    assert not list((tmp_path / "out").glob(".*.tmp"))


@needs_triton
def test_a_change_runs_what_depends_on_it(tmp_path: Path) -> None:
    write(tmp_path, *SHORT)
    rx.run_pipeline(tmp_path / "pipeline.toml")
    done = rx.run_pipeline(write(tmp_path, *SHORT[:-1], "[package]\nmax_batch = 4"))
    assert ran(done) == ["package"]
    assert why(done, "package") == "max_batch: 8 became 4"
    config = (tmp_path / "out/repository/net/config.pbtxt").read_text()
    assert "max_batch_size: 4" in config
    # Other options that come to the same model: what only has the model as its input is skipped.
    other = OPTIMIZE + '\nnumerics = "exact"'
    done = rx.run_pipeline(write(tmp_path, MODEL, other, *SHORT[2:-1]))
    assert why(done, "optimize") == 'numerics: "reordered" became "exact"'
    assert states(done) == {"optimize": "done", "prove": "done", "verify": "skipped"}
    done = rx.run_pipeline(write(tmp_path, MODEL, other, PROVE, "[verify]\nseed = 3"))
    assert ran(done) == ["verify"]
    onnx.save(model(3, scale=2.0), tmp_path / "three.onnx")
    done = rx.run_pipeline(write(tmp_path, MODEL, other, *SHORT[2:]))
    assert ran(done) == ["optimize", "prove", "verify", "package"]
    assert why(done, "optimize") == "three.onnx was changed"


def test_a_default_that_is_written_out_is_no_change(tmp_path: Path) -> None:
    rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE))
    spelled = OPTIMIZE + '\ntarget = "portable"\nfold_gate = true'
    assert ran(rx.run_pipeline(write(tmp_path, MODEL, spelled))) == []


def test_a_runtime_chooses_the_target(tmp_path: Path) -> None:
    for_openvino = OPTIMIZE + '\nfor = "openvino"'
    step = rx.run_pipeline(write(tmp_path, MODEL, for_openvino)).step("optimize")
    assert step.summary == "3 of 3 RMSNorms are plain operators"
    assert any(note.startswith("for openvino: plain") for note in step.facts["notes"])
    made = onnx.load(tmp_path / "out/optimize/net.onnx")
    assert not made.functions
    done = rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE + '\nfor = "opencv"'))
    assert why(done, "optimize") == 'for: "openvino" became "opencv"'
    with pytest.raises(rx.UsageError, match="no such runtime") as caught:
        rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE + '\nfor = "openvin"'))
    assert "did you mean 'openvino'?" in caught.value.fix


def test_another_package_version_runs_the_step_again(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    rx.run_pipeline(path)
    record = tmp_path / "out/optimize/step.json"
    now = f'"package onnx": "{onnx.__version__}"'
    assert now in record.read_text()
    record.write_text(record.read_text().replace(now, '"package onnx": "1.0.0"'))
    done = rx.run_pipeline(path)
    assert why(done, "optimize") == f"onnx: 1.0.0 became {onnx.__version__}"
    body = json.loads(record.read_text())
    body["inputs"]["program"] = "of an older version"
    record.write_text(json.dumps(body))
    assert why(rx.run_pipeline(path), "optimize") == "rmsnorm-export itself was changed"


@pytest.mark.parametrize("damage", ["deleted", "cut", "flipped", "record"])
def test_a_damaged_output_is_made_again(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    rx.run_pipeline(path)
    made = tmp_path / "out/optimize/net.onnx"
    before = made.read_bytes()
    if damage == "deleted":
        made.unlink()
    elif damage == "cut":
        made.write_bytes(before[:100])
    elif damage == "flipped":
        made.write_bytes(before[:50] + bytes([before[50] ^ 1]) + before[51:])
    else:
        (tmp_path / "out/optimize/step.json").write_text("{")
    dry = rx.run_pipeline(path, dry_run=True)
    assert (dry.step("optimize").plan, dry.step("prove").plan) == ("run", "maybe")
    done = rx.run_pipeline(path)
    said = {"deleted": "gone", "record": "has not run"}.get(damage, "changed")
    assert said in why(done, "optimize")
    assert made.read_bytes() == before
    assert states(done) == {"optimize": "done", "prove": "skipped"}


def test_external_data_is_an_input(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\npath = "big/net.onnx"', OPTIMIZE)
    save_external(model(3), tmp_path / "big/net.onnx", "w.bin")
    rx.run_pipeline(path)
    assert ran(rx.run_pipeline(path)) == []
    weights = tmp_path / "big/w.bin"
    stat = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # by content, not by time
    assert why(rx.run_pipeline(path), "optimize") == "w.bin was changed"
    copy = next(p for p in (tmp_path / "out/optimize").iterdir() if p.name.endswith(".bin"))
    copy.write_bytes(b"")
    assert "was changed" in why(rx.run_pipeline(path), "optimize")
    assert copy.stat().st_size == stat.st_size
    weights.unlink()
    with pytest.raises(rx.InputError) as caught:
        rx.run_pipeline(path)
    assert "w.bin" in caught.value.found


def test_of_many_bytes_size_and_time_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmsnorm_export.system.digest.HASHED_BYTES", 100)
    monkeypatch.setattr("rmsnorm_export.pipeline.identity.SMALL", 2000)
    path = write(tmp_path, MODEL, OPTIMIZE)
    rx.run_pipeline(path)
    record = json.loads((tmp_path / "out/optimize/step.json").read_text())
    assert [output["sha256"] for output in record["outputs"]] == ["", ""]
    assert ran(rx.run_pipeline(path)) == []
    os.utime(tmp_path / "out/optimize/net.onnx")
    assert "net.onnx was touched" in why(rx.run_pipeline(path), "optimize")


def test_files_that_a_user_put_beside_the_outputs_stay(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    rx.run_pipeline(path)
    note = tmp_path / "out/optimize/notes.txt"
    note.write_text("mine")
    assert ran(rx.run_pipeline(path, force_step="optimize")) == ["optimize"]
    assert note.read_text() == "mine"


@needs_triton
def test_everything_can_be_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    rx.run_pipeline(write(old, *SHORT))
    old.rename(new)
    done = rx.run_pipeline(new / "pipeline.toml")
    assert set(states(done).values()) == {"skipped"}
    assert done.folder == new / "out"
    done = rx.run_pipeline(new / "pipeline.toml", force_step="prove")
    assert ran(done) == ["prove", "verify", "package"]


def test_a_deployment_as_json_and_back(tmp_path: Path) -> None:
    done = rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, PROVE, VERIFY))
    assert from_json(to_json(done), rx.Deployment) == done
    assert done.step("prove").name == "prove"
    with pytest.raises(KeyError):
        done.step("bench")
    done.require()


def test_a_repository_that_cannot_be_made_is_told_first(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, '[package]\nrepository = "none/models"')
    with pytest.raises(rx.InputError, match="repository cannot be made"):
        rx.run_pipeline(path)
    assert not (tmp_path / "out").exists()


def test_until_and_force_step(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, VERIFY)
    done = rx.run_pipeline(path, until="prove")
    assert states(done) == {"optimize": "done", "prove": "done", "verify": "not run"}
    assert not (tmp_path / "out/verify").exists()
    rx.run_pipeline(path)
    done = rx.run_pipeline(path, force_step="prove")
    assert states(done) == {"optimize": "skipped", "prove": "done", "verify": "done"}
    assert why(done, "verify") == "--force-step prove"
    for option in ("until", "force_step"):
        with pytest.raises(rx.UsageError, match="no such step") as caught:
            rx.run_pipeline(path, **{option: "bench"})
        assert "optimize, prove, verify" in caught.value.fix


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE)
    dry = rx.run_pipeline(path, dry_run=True)
    assert [(s.state, s.plan) for s in dry.steps] == [("not run", "run")] * 2
    assert not (tmp_path / "out").exists()
    rx.run_pipeline(path)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    dry = rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, PROVE + "\nseed = 1"), dry_run=True)
    assert [(s.state, s.plan) for s in dry.steps] == [("skipped", "skip"), ("not run", "run")]
    assert why(dry, "prove") == "seed: 0 became 1"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


def test_a_requirement_that_is_not_met(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, "[optimize]\nrequire = 4", PROVE, VERIFY)
    done = rx.run_pipeline(path)
    assert (done.passed, done.exit_code) == (False, 5)
    assert states(done) == {"optimize": "failed", "prove": "not run", "verify": "not run"}
    assert why(done, "verify") == "optimize failed"
    assert not (tmp_path / "out/optimize").exists()
    assert document(tmp_path / "out")["steps"][0]["failure"]["exit_code"] == 5
    with pytest.raises(rx.RequirementError, match="Step optimize: ") as caught:
        done.require()
    assert "require = 4" in caught.value.what


def test_models_that_differ(tmp_path: Path) -> None:
    path = write(
        tmp_path, MODEL, OPTIMIZE, "[verify]\natol = 0.0\nshapes = { x = [64, 40] }", PACKAGE
    )
    done = rx.run_pipeline(path)
    assert (done.exit_code, states(done)["package"]) == (4, "not run")
    assert not (tmp_path / "out/repository").exists()
    comparison = json.loads((tmp_path / "out/verify/raw-optimized.json").read_text())
    assert not comparison["passed"]
    again = rx.run_pipeline(path, until="verify")
    assert (why(again, "verify"), again.exit_code) == ("it failed the last time", 4)
    assert rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, VERIFY)).passed


def test_a_proof_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Proof(False, "distance: 9 ulp", (), 9.0, 1.0, 1.0, 1.0, 1.0, 3.0, "a test")
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, PACKAGE)
    with monkeypatch.context() as patch:
        patch.setattr("rmsnorm_export.proof.prove.prove_site", lambda *_, **__: failed)
        done = rx.run_pipeline(path)
    assert (done.exit_code, states(done)["package"]) == (4, "not run")
    assert done.failed is not None
    assert done.failed.failure is not None
    assert "distance: 9 ulp" in done.failed.failure.found
    report = json.loads((tmp_path / "out/prove/report.json").read_text())
    assert [refusal["reason"] for refusal in report["refused"]] == ["proof-failed"] * 3
    assert ran(rx.run_pipeline(path, until="prove")) == ["prove"]


@pytest.mark.export
def test_a_factory_and_what_it_imports_are_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, EXPORT, OPTIMIZE, VERIFY)
    (tmp_path / "factory.py").write_text("from layers import make\n")
    layers = "import torch\nmake = lambda: torch.nn.Sequential(torch.nn.RMSNorm(40){})\n"
    (tmp_path / "layers.py").write_text(layers.format(""))
    first = rx.run_pipeline(path)
    assert first.passed, first.failed
    assert first.step("verify").summary == "raw = optimized; pytorch = optimized"
    assert ran(rx.run_pipeline(path)) == []
    (tmp_path / "layers.py").write_text(layers.format(", torch.nn.SiLU()"))
    done = rx.run_pipeline(path)
    assert why(done, "export") == "layers.py was changed"
    optimized = onnx.load(tmp_path / "out/optimize/net.onnx")
    assert "Sigmoid" in {node.op_type for node in optimized.graph.node}
    assert ran(done) == ["export", "optimize", "verify"]


OWN_TYPE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, largest):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(40, 40, bias=False), torch.nn.RMSNorm(40)
        self.largest = largest
        self.to(torch.bfloat16)

    def forward(self, x):
        return self.norm(self.first(x)) * self.largest * self.largest

def make(largest=1.0):
    return Net(largest)
"""
AS_F16 = (
    '[export]\nsource = "own:make"\ndtype = "f16"\nshapes = "x=f16[batch=1..8,40]"'
    "\narguments = {{largest = {}}}"
)


@pytest.mark.export
def test_a_file_in_another_type_is_compared_with_the_type_of_the_source(tmp_path: Path) -> None:
    """In float16 the module overflows as the file does; in its own bfloat16 it does not."""
    path = write(tmp_path, AS_F16.format(1.0), OPTIMIZE, VERIFY)
    (tmp_path / "own.py").write_text(OWN_TYPE)
    assert rx.run_pipeline(path).passed
    compared = json.loads((tmp_path / "out/verify/pytorch-optimized.json").read_text())
    assert compared["notes"] == ["compared with the source in its own bfloat16"]
    assert "bfloat16" in compared["outputs"][0]["tolerance"]
    path = write(tmp_path, AS_F16.format(300.0), OPTIMIZE, VERIFY)
    done = rx.run_pipeline(path)
    assert done.failed is not None
    assert done.failed.failure is not None
    assert (done.failed.name, done.failed.failure.exit_code) == ("verify", 4)
    assert "NaN or infinities in different places" in done.failed.failure.found
    assert "pytorch IS NOT optimized" in done.failed.summary


@pytest.mark.export
def test_a_module_that_cannot_be_run_in_its_own_type(tmp_path: Path) -> None:
    """The file is exported all the same; that nothing was compared is the result of [verify]."""
    path = write(tmp_path, AS_F16.format(1.0), OPTIMIZE, VERIFY)
    lines = (
        "if x.dtype == torch.bfloat16:",
        "            raise RuntimeError(\"'rsqrt' not implemented for 'BFloat16'\")",
        "        return self.norm(",
    )
    (tmp_path / "own.py").write_text(OWN_TYPE.replace("return self.norm(", "\n".join(lines)))
    done = rx.run_pipeline(path)
    assert done.failed is not None
    assert done.failed.failure is not None
    assert (done.failed.name, done.failed.failure.exit_code) == ("verify", 7)
    assert "'rsqrt' not implemented for 'BFloat16'" in done.failed.failure.found
    assert done.failed.summary == "raw = optimized; pytorch CANNOT BE COMPARED with optimized"


@needs_triton
def test_every_report_of_a_run_is_true_of_its_files(tmp_path: Path) -> None:
    """Also after all of it was moved; that of the run names every file of its steps."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert rx.run_pipeline(write(here, MODEL, OPTIMIZE, PROVE, VERIFY, PACKAGE)).passed
    here.rename(there)
    documents = {file: json.loads(file.read_text()) for file in there.rglob("*.json")}
    reports = {file for file, document in documents.items() if "provenance" in document}
    names = {file.relative_to(there / "out").as_posix() for file in reports}
    assert {"deploy.json", "prove/report.json", "verify/raw-optimized.json"} <= names
    assert "repository/net/1/report.json" in names


@needs_triton
def test_a_repository_that_is_somebody_elses(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, '[package]\nrepository = "models"\nmax_batch = 8')
    other = tmp_path / "other.onnx"
    onnx.save(model(2), other)
    rx.package_model(other, tmp_path / "models", name="net", max_batch=8)
    with pytest.raises(rx.UsageError, match="model repository has this model already") as caught:
        rx.run_pipeline(path)
    assert "other origin" in caught.value.found
    assert not (tmp_path / "out/package").exists()
    assert rx.run_pipeline(path, force=True).passed
    # From now on it is ours, and is replaced when something changes.
    onnx.save(model(3, scale=3.0), tmp_path / "three.onnx")
    assert ran(rx.run_pipeline(path)) == ["package"]
    config = tmp_path / "models/net/config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    with pytest.raises(rx.UsageError, match="edited since") as caught:
        rx.run_pipeline(path)
    assert "config.pbtxt" in caught.value.found
    assert rx.run_pipeline(path, force=True).passed
    assert "# mine" not in config.read_text()
    (tmp_path / "models/net/1/model.onnx").write_bytes(b"damaged")
    assert ran(rx.run_pipeline(path)) == ["package"]


@needs_triton
def test_a_run_with_nothing_to_do_reads_every_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, MODEL, "[optimize]", PROVE, VERIFY, PACKAGE)
    rx.run_pipeline(path)
    read: dict[str, list[Path]] = {"load_model": [], "sha256_of": []}

    def counted(name: str, real: Callable[[Path], object]) -> None:
        def call(file: Path) -> object:
            read[name].append(file)
            return real(file)

        monkeypatch.setattr(identity, name, call)

    counted("load_model", identity.load_model)
    counted("sha256_of", identity.sha256_of)
    assert set(states(rx.run_pipeline(path)).values()) == {"skipped"}
    assert read["load_model"] == [tmp_path / "three.onnx"]
    hashed = read["sha256_of"]
    assert len(hashed) == len({file.resolve() for file in hashed})
    assert tmp_path / "out/repository/net/1/model.onnx" in {file.resolve() for file in hashed}


def test_models_that_cannot_be_run_here(tmp_path: Path) -> None:
    """Neither agreement nor difference: it has an exit code of its own."""
    path = write(tmp_path, MODEL, OPTIMIZE, VERIFY)
    bent = model(3)
    bent.graph.node.append(helper.make_node("Bend", ["out"], ["bent"], domain="their.own"))
    bent.graph.output[0].name = "bent"
    bent.opset_import.append(helper.make_opsetid("their.own", 1))
    onnx.save(bent, tmp_path / "three.onnx")
    done = rx.run_pipeline(path)
    assert states(done) == {"optimize": "done", "verify": "failed"}
    assert done.exit_code == 7
    assert done.failed is not None
    assert "their.own:Bend" in done.failed.failure.found
    (entry,) = done.step("verify").facts["comparisons"]
    assert (entry["passed"], entry["verdict"]) == (False, "not run")


def test_models_that_agree_on_nan_only_are_no_pass(tmp_path: Path) -> None:
    """Nor are they packaged."""
    path = write(tmp_path, MODEL, OPTIMIZE, PROVE, VERIFY)
    bad = model(3)
    bad.graph.initializer.append(helper.make_tensor("nan", onnx.TensorProto.FLOAT, [], [math.nan]))
    bad.graph.node.append(helper.make_node("Mul", ["out", "nan"], ["none"]))
    bad.graph.output[0].name = "none"
    onnx.save(bad, tmp_path / "three.onnx")
    done = rx.run_pipeline(path)
    assert states(done) == {"optimize": "done", "prove": "done", "verify": "failed"}
    assert done.exit_code == 4
    assert done.failed is not None
    assert "no finite number" in done.failed.failure.found


def test_what_has_to_be_verified_needs_a_step_that_does(tmp_path: Path) -> None:
    with pytest.raises(rx.UsageError, match="nothing would be verified"):
        rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE), require_verified=True)


@pytest.mark.skipif(gpu_visible(), reason="the engine is compared where a GPU is")
def test_an_engine_that_could_not_be_run_here(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    pytest.importorskip("polygraphy")
    path = write(tmp_path, MODEL, BUILD, VERIFY)
    done = rx.run_pipeline(path)
    assert done.passed, done.failed
    assert "engine not compared" in done.step("verify").summary
    done = rx.run_pipeline(path, require_verified=True)
    assert (states(done)["verify"], done.exit_code) == ("failed", 7)
    assert "could not be run here" in done.step("verify").failure.what

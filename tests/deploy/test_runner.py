"""``run_pipeline``: what runs, what is skipped and why, and what is left after a failure."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import from_json, to_json
from tests.cli.conftest import model
from tests.deploy.pipelines import (
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
from tests.engine.conftest import needs_rtx

ROOT = Path(__file__).resolve().parents[2]
SHORT = (MODEL, OPTIMIZE, PROVE, VERIFY, PACKAGE)


def test_a_pipeline_and_the_runs_after_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    path, told = write(old, *SHORT), []
    first = rx.run_pipeline(path, told=lambda step: told.append(step.name))
    assert first.passed, first.failed
    assert told == ["optimize", "verify", "package"] == ran(first)
    assert first.step("optimize").summary == "3 of 3 RMSNorms are one node; 3 of 3 proofs hold"
    assert first.step("verify").summary == "raw = optimized"
    made = (old / "out/optimize/net.onnx").read_bytes()
    nodes = onnx.load_from_string(made).graph.node
    assert [node.op_type for node in nodes].count("RMSNorm") == 3
    served = old / "out/repository/net/1"
    assert (served / "model.onnx").read_bytes() == made
    assert json.loads((served / "report.json").read_text())["fused"][0]["proof"]["passed"]
    assert document(old / "out")["kind"] == "deployment"
    assert_consistent(old / "out")
    assert from_json(to_json(first), rx.Deployment) == first
    old.rename(new)
    second = rx.run_pipeline(new / "pipeline.toml")
    assert set(states(second).values()) == {"skipped"}, second.steps
    assert [step.stamp for step in second.steps] == [step.stamp for step in first.steps]
    (new / "out/optimize/notes.txt").write_text("mine")
    (new / "out/optimize/net.onnx").write_bytes(b"damaged")
    third = rx.run_pipeline(new / "pipeline.toml")
    assert states(third)["verify"] == "skipped", "the same model was made"
    assert third.step("optimize").why == "the output net.onnx was changed"
    assert (new / "out/optimize/net.onnx").read_bytes() == made
    assert (new / "out/optimize/notes.txt").read_text() == "mine"


def test_a_change_runs_what_depends_on_it(tmp_path: Path) -> None:
    rx.run_pipeline(write(tmp_path, *SHORT))
    done = rx.run_pipeline(write(tmp_path, *SHORT[:-1], "[package]\nmax_batch = 4"))
    assert (ran(done), done.step("package").why) == (["package"], "max_batch: 8 became 4")
    assert "max_batch_size: 4" in (tmp_path / "out/repository/net/config.pbtxt").read_text()
    # Another option that comes to the same model: what only has the model as its input is skipped.
    other = OPTIMIZE + '\nnumerics = "exact"'
    done = rx.run_pipeline(write(tmp_path, MODEL, other, *SHORT[2:-1]))
    assert done.step("optimize").why == 'numerics: "reordered" became "exact"'
    assert states(done) == {"optimize": "done", "verify": "skipped"}
    onnx.save(model(3, scale=2.0), tmp_path / "three.onnx")
    path = write(tmp_path, MODEL, other, *SHORT[2:-1])
    dry = rx.run_pipeline(path, dry_run=True)
    assert states(dry) == {"optimize": "would run", "verify": "may run"}
    assert dry.step("optimize").why == "three.onnx was changed"
    done = rx.run_pipeline(path, until="optimize")
    assert states(done) == {"optimize": "done", "verify": "not run"}
    assert ran(rx.run_pipeline(path)) == ["verify"]
    with pytest.raises(rx.UsageError, match="no such step"):
        rx.run_pipeline(path, until="bench")


def test_a_requirement_that_is_not_met(tmp_path: Path) -> None:
    done = rx.run_pipeline(write(tmp_path, MODEL, "[optimize]\nrequire = 4", VERIFY))
    assert (done.passed, done.exit_code) == (False, 5)
    assert states(done) == {"optimize": "failed", "verify": "not run"}
    assert not (tmp_path / "out/optimize").exists()
    assert document(tmp_path / "out")["steps"][0]["failure"]["exit_code"] == 5
    with pytest.raises(rx.RequirementError, match=r"Step optimize: "):
        done.require()


def test_models_that_differ_and_those_that_cannot_be_run(tmp_path: Path) -> None:
    strict = "[verify]\natol = 0.0\nshapes = { x = [64, 40] }"
    path = write(tmp_path, MODEL, OPTIMIZE, strict, PACKAGE)
    done = rx.run_pipeline(path)
    assert (done.exit_code, states(done)["package"]) == (4, "not run")
    assert not (tmp_path / "out/repository").exists()
    assert not json.loads((tmp_path / "out/verify/raw-optimized.json").read_text())["passed"]
    again = rx.run_pipeline(path, until="verify")
    assert (again.step("verify").why, again.exit_code) == ("it failed the last time", 4)
    bent = model(3)
    bent.graph.node.append(helper.make_node("Bend", ["out"], ["bent"], domain="their.own"))
    bent.graph.output[0].name = "bent"
    bent.opset_import.append(helper.make_opsetid("their.own", 1))
    onnx.save(bent, tmp_path / "three.onnx")
    done = rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, VERIFY))
    assert (states(done)["verify"], done.exit_code) == ("failed", 7)


def test_a_proof_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Proof(False, "distance: 9 ulp", (), 9.0, 1.0, 1.0, 1.0, 1.0, 3.0, "a test")
    path = write(tmp_path, MODEL, "[optimize]", PROVE, PACKAGE)
    with monkeypatch.context() as patch:
        patch.setattr("rmsnorm_export.proof.prove.prove_site", lambda *_, **__: failed)
        done = rx.run_pipeline(path)
    assert (done.exit_code, states(done)["package"]) == (4, "not run")
    assert done.error is not None
    assert "distance: 9 ulp" in done.error.found
    assert ran(rx.run_pipeline(path, until="optimize")) == ["optimize"]


@pytest.mark.export
def test_a_factory_and_what_it_imports_are_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, EXPORT, OPTIMIZE, VERIFY)
    (tmp_path / "factory.py").write_text("from layers import make\n")
    layers = "import torch\nmake = lambda: torch.nn.Sequential(torch.nn.RMSNorm(40){})\n"
    (tmp_path / "layers.py").write_text(layers.format(""))
    first = rx.run_pipeline(path)
    assert first.passed, first.failed
    assert first.step("export").summary.endswith("pytorch = raw")
    assert ran(rx.run_pipeline(path)) == []
    (tmp_path / "layers.py").write_text(layers.format(", torch.nn.SiLU()"))
    done = rx.run_pipeline(path)
    assert (ran(done), done.step("export").why) == (
        ["export", "optimize", "verify"], "layers.py was changed",
    )  # fmt: skip
    optimized = onnx.load(tmp_path / "out/optimize/net.onnx")
    assert "Sigmoid" in {node.op_type for node in optimized.graph.node}


def test_a_repository_that_is_somebody_elses(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, '[package]\nrepository = "models"\nmax_batch = 8')
    onnx.save(model(2), tmp_path / "other.onnx")
    rx.package_model(tmp_path / "other.onnx", tmp_path / "models", name="net", max_batch=8)
    done = rx.run_pipeline(path)
    assert (done.exit_code, "version 1 exists" in str(done.error)) == (2, True)
    assert rx.run_pipeline(path, force=True).passed
    # From now on it is ours, and is replaced when something changes.
    onnx.save(model(3, scale=3.0), tmp_path / "three.onnx")
    assert ran(rx.run_pipeline(path)) == ["package"]
    config = tmp_path / "models/net/config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    (tmp_path / "models/net/1/model.onnx").write_bytes(b"damaged")
    assert ran(rx.run_pipeline(path)) == ["package"]
    onnx.save(model(3, scale=4.0), tmp_path / "three.onnx")
    assert ran(rx.run_pipeline(path)) == ["package"]
    assert "# mine" in config.read_text(), "what was edited stays"
    assert rx.package_model(model(3), tmp_path / "models", name="net", force=True)
    assert "# mine" not in config.read_text()


@pytest.mark.parametrize(
    ("package", "table", "brings"),
    [("polygraphy", BUILD, "polygraphy"), ("onnxruntime", "[bench]", "onnxruntime>=")],
)
def test_a_missing_backend_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, table: str, brings: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "rmsnorm_export.system.packages.find_spec",
        lambda name: None if name == package else find(name),
    )
    with pytest.raises(rx.BackendMissingError) as caught:
        rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, table))
    assert brings in caught.value.fix
    assert not (tmp_path / "out").exists()


@needs_rtx
@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "diffusion"])
def test_an_example(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers")
    examples = tmp_path / "examples"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(ROOT / "docs" / "examples", examples, ignore=ignored)
    config = examples / "decoder" / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 1')
    )
    done = rx.run_pipeline(examples / f"{name}.toml")
    assert done.passed, done.failed
    assert set(states(done).values()) == {"done"}
    assert "pytorch = raw" in done.step("export").summary
    assert_consistent(done.folder)
    assert set(states(rx.run_pipeline(examples / f"{name}.toml")).values()) == {"skipped"}


@pytest.mark.export
@pytest.mark.slow
def test_a_decoder_is_a_folder_of_graphs(tmp_path: Path) -> None:
    pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")
    shutil.copy(ROOT / "docs/examples/decoder/config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    export = '[export]\nsource = "config.json"\ntask = "generation"'
    path = write(tmp_path, export, OPTIMIZE, PROVE, VERIFY, "[package]")
    first = rx.run_pipeline(path)
    assert ran(first) == ["export", "optimize", "verify", "package"], first.failed
    repository = tmp_path / "out/repository"
    assert {one.name for one in repository.iterdir()} == {"net_prefill", "net_decode"}
    assert_consistent(tmp_path / "out")
    assert set(states(rx.run_pipeline(path)).values()) == {"skipped"}

"""``run_pipeline``: what runs, what is skipped and why, and what is left after a failure."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.records import from_json, to_json
from tests.cli.conftest import model
from tests.deploy.models import assert_consistent, document, ran, states, write
from tests.engine.conftest import needs_rtx
from tests.proof.sites import LLAMA, source

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_a_pipeline_and_the_runs_after_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    first = rx.run_pipeline(write(old, "model", "proved", "verify", "package"))
    assert ran(first) == ["optimize", "verify", "package"], first.error
    assert first.step("optimize").summary == "3 of 3 RMSNorms are one node; 3 of 3 proofs hold"
    agree = "the models agree: 1 of 1 output within bounds"
    assert first.step("verify").summary == agree
    optimized = (old / "out/optimize/net.onnx").read_bytes()
    nodes = onnx.load_from_string(optimized).graph.node
    assert [node.op_type for node in nodes].count("RMSNorm") == 3
    assert (old / "out/repository/net/1/model.onnx").read_bytes() == optimized
    report = json.loads((old / "out/optimize/report.json").read_text())
    assert report["fused"][0]["proof"]["passed"]
    assert document(old / "out")["kind"] == "deployment"
    assert_consistent(old / "out")
    assert from_json(to_json(first), rx.Deployment) == first
    old.rename(new)
    second = rx.run_pipeline(new / "pipeline.toml")
    assert set(states(second).values()) == {"skipped"}, second.steps
    of_both = [[(s.inputs, s.outputs, s.summary) for s in run.steps] for run in (first, second)]
    assert of_both[0] == of_both[1]
    (new / "out/optimize/notes.txt").write_text("mine")
    (new / "out/optimize/net.onnx").unlink()
    third = rx.run_pipeline(new / "pipeline.toml")
    assert states(third)["verify"] == "skipped", "the same model was made"
    assert third.step("optimize").why == "the output net.onnx is gone"
    assert (new / "out/optimize/net.onnx").read_bytes() == optimized
    assert (new / "out/optimize/notes.txt").read_text() == "mine"


def test_a_change_runs_what_depends_on_it(tmp_path: Path) -> None:
    rx.run_pipeline(write(tmp_path, "model", "optimize", "verify", "package"))
    done = rx.run_pipeline(
        write(tmp_path, "model", "optimize", "verify", "[package]\nmax_batch = 4")
    )
    assert (ran(done), done.step("package").why) == (["package"], "max_batch: 8 became 4")
    assert "max_batch_size: 4" in (tmp_path / "out/repository/net/config.pbtxt").read_text()
    # Another option that comes to the same model: what only has the model as its input is skipped.
    tables = ("model", '[optimize]\nrequire = "all"\nnumerics = "exact"', "verify")
    done = rx.run_pipeline(write(tmp_path, *tables))
    assert done.step("optimize").why == 'numerics: "reordered" became "exact"'
    assert states(done) == {"optimize": "done", "verify": "skipped"}
    onnx.save(model(3, scale=2.0), tmp_path / "three.onnx")
    path = write(tmp_path, *tables)
    dry = rx.run_pipeline(path, dry_run=True)
    assert states(dry) == {"optimize": "would run", "verify": "may run"}
    assert dry.step("optimize").why == "three.onnx was changed"
    done = rx.run_pipeline(path, until="optimize")
    assert states(done) == {"optimize": "done", "verify": "not run"}
    assert ran(rx.run_pipeline(path)) == ["verify"]
    with pytest.raises(rx.UsageError, match="no such step"):
        rx.run_pipeline(path, until="bench")


def test_a_pipeline_for_a_server_with_a_gpu(tmp_path: Path) -> None:
    """Its norms have their residual sum in the node, which the CUDA provider squares in float32."""
    body = f"  h = Add (x, q)\n  xf = Cast <to = 1> (h)\n{LLAMA}"
    ends = {"inputs": ("x", "q", "w"), "outputs": ("y", "h"), "row": "xf"}
    onnx.save(ir.to_proto(source(body, dtype=10, **ends)), tmp_path / "half.onnx")
    tables = ('[model]\npath = "half.onnx"', '[optimize]\nfor = "onnxruntime-gpu"\nprove = true')
    done = rx.run_pipeline(write(tmp_path, *tables, '[package]\nkind = "gpu"'))
    assert ran(done) == ["optimize", "package"], done.error
    repository = tmp_path / "out/repository/net"
    assert "instance_group { kind: KIND_GPU " in (repository / "config.pbtxt").read_text()
    (node,) = onnx.load(repository / "1/model.onnx").graph.node
    assert node.op_type == "SkipSimplifiedLayerNormalization"


BENT = '[model]\npath = "bent.onnx"'


@pytest.mark.parametrize(
    ("tables", "step", "code"),
    [
        (("model", "[optimize]\nrequire = 4"), "optimize", 5),
        (("model", "optimize", "[verify]\natol = 0.0\nshapes = { x = [64, 40] }"), "verify", 4),
        (("model", "[optimize]\nprove = true"), "optimize", 4),
        ((BENT, "optimize", "verify"), "verify", 7),
    ],
    ids=["not met", "differ", "proof", "not run"],
)
def test_a_step_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tables: tuple[str, ...],
    step: Any,
    code: int,
) -> None:
    """No other runs, nothing is packaged, and it runs again the next time."""
    wrong = Proof(False, "distance: 9 ulp", (), 9.0, 1.0, 1.0, 1.0, 1.0, 3.0, "a test")
    monkeypatch.setattr("rmsnorm_export.proof.prove.prove_site", lambda *_, **__: wrong)
    bent = model(3)
    bent.graph.node[-1].CopyFrom(helper.make_node("Bend", ["x"], ["out"], domain="their.own"))
    bent.opset_import.append(helper.make_opsetid("their.own", 1))
    onnx.save(bent, tmp_path / "bent.onnx")
    path = write(tmp_path, *tables, "package")
    done = rx.run_pipeline(path)
    assert done.exit_code == code
    assert (states(done)[step], states(done)["package"]) == ("failed", "not run")
    assert not (tmp_path / "out/repository").exists()
    failures = [one["failure"] for one in document(tmp_path / "out")["steps"]]
    assert [one["exit_code"] for one in failures if one] == [code]
    assert done.error is not None
    assert done.error.what.startswith(f"Step {step}: ")
    assert done.error.exit_code == code
    assert states(rx.run_pipeline(path, until=step))[step] == "failed"


@pytest.mark.export
def test_a_factory_and_what_it_imports_are_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, "export", "optimize", "verify")
    (tmp_path / "factory.py").write_text("from layers import make\n")
    layers = "import torch\nmake = lambda: torch.nn.Sequential(torch.nn.RMSNorm(40){})\n"
    (tmp_path / "layers.py").write_text(layers.format(""))
    first = rx.run_pipeline(path)
    assert first.step("export").summary.startswith("the models agree"), first.error
    assert ran(rx.run_pipeline(path)) == []
    (tmp_path / "layers.py").write_text(layers.format(", torch.nn.SiLU()"))
    done = rx.run_pipeline(path)
    assert done.step("export").why == "layers.py was changed"
    assert ran(done) == ["export", "optimize", "verify"]
    optimized = onnx.load(tmp_path / "out/optimize/net.onnx")
    assert "Sigmoid" in {node.op_type for node in optimized.graph.node}


@pytest.mark.export
def test_an_export_notes_what_a_cast_loses(tmp_path: Path) -> None:
    make = "lambda: torch.nn.RMSNorm(8).requires_grad_(False).apply(lambda m: m.weight.fill_(1e-9))"
    (tmp_path / "tiny.py").write_text(f"import torch\nmake = {make}\n")
    export = '[export]\nsource = "tiny:make"\nshapes = "x=f16[2,8]"\ndtype = "f16"'
    done = rx.run_pipeline(write(tmp_path, export)).step("export")
    assert done.failure is None
    assert "8 weights that are not zero become zero in float16" in done.notes[0]


def test_a_repository_that_is_somebody_elses(tmp_path: Path) -> None:
    path = write(tmp_path, "model", '[package]\nrepository = "models"\nmax_batch = 8')
    rx.package_model(model(2), tmp_path / "models", name="net", max_batch=8)
    done = rx.run_pipeline(path)
    assert (done.exit_code, "version 1 exists" in str(done.error)) == (2, True)
    assert rx.run_pipeline(path, force=True).error is None
    config = tmp_path / "models/net/config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    # From now on it is ours, and is replaced when something changes; what was edited stays.
    onnx.save(model(3, scale=3.0), tmp_path / "three.onnx")
    assert ran(rx.run_pipeline(path)) == ["package"]
    (tmp_path / "models/net/1/model.onnx").unlink()
    assert ran(rx.run_pipeline(path)) == ["package"]
    assert "# mine" in config.read_text()
    assert rx.package_model(model(3), tmp_path / "models", name="net", force=True)
    assert "# mine" not in config.read_text()


@pytest.mark.parametrize(
    ("package", "table", "brings"),
    [("polygraphy", "build", "polygraphy"), ("onnxruntime", "[bench]", "onnxruntime>=")],
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
        rx.run_pipeline(write(tmp_path, "model", "optimize", table))
    assert brings in caught.value.fix
    assert not (tmp_path / "out").exists()


@needs_rtx
@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "diffusion", "generation"])
def test_an_example(tmp_path: Path, name: str) -> None:
    """Those of the documentation, with one layer; and a decoder as a folder of graphs."""
    pytest.importorskip("transformers.exporters.metadata", reason="transformers>=5.23")
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("build", "__pycache__"))
    config = folder / "decoder" / "config.json"
    content = json.loads(config.read_text()) | {"num_hidden_layers": 1}
    config.write_text(json.dumps(content))
    path = folder / f"{name}.toml"
    if name == "generation":
        export = '[export]\nsource = "decoder/config.json"\ntask = "generation"'
        path = write(folder, export, "proved", "verify", "[package]")
    done = rx.run_pipeline(path)
    assert set(states(done).values()) == {"done"}, done.error
    assert "the models agree" in done.step("export").summary
    assert_consistent(done.folder)
    assert set(states(rx.run_pipeline(path)).values()) == {"skipped"}
    if name == "generation":
        packaged = {one.name for one in (done.folder / "repository").iterdir()}
        assert packaged == {"net_prefill", "net_decode"}

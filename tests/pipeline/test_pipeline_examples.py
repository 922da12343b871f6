"""The examples under docs/examples, from end to end, and again from what the first run left."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.show import to_html
from tests import warm
from tests.engine.conftest import needs_rtx
from tests.pipeline.pipelines import assert_consistent, states
from tests.serving.models import needs_triton

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The folder without what earlier runs made in it."""
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return copy


def deploy(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, from another folder."""
    return warm.run(warm.COMMAND, "deploy", path, *arguments, imports=warm.EXPORT)


@needs_triton
@needs_rtx
@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_decoder(examples: Path, tmp_path: Path, layers: int) -> None:
    """As it is with four layers; and with one, in a fraction of the time."""
    pytest.importorskip("transformers")
    config = examples / "decoder" / "config.json"
    settings = json.loads(config.read_text())
    assert settings["num_hidden_layers"] == 4
    config.write_text(json.dumps(settings | {"num_hidden_layers": layers}))
    norms = 4 * layers + 1
    path = examples / "decoder.toml"
    page = tmp_path / "decoder.html"
    done = deploy(path, "--report", str(page), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    out = examples / "build" / "decoder"
    written = json.loads((out / "deploy.json").read_text())
    assert json.loads(done.stdout) == written
    facts = {step["name"]: step["facts"] for step in written["steps"]}
    assert {step["state"] for step in written["steps"]} == {"done"}
    assert (facts["optimize"]["fused"], facts["prove"]["proofs"]) == (norms, norms)
    assert sum(facts["build"]["norms"].values()) == norms
    assert "unknown" not in facts["build"]["norms"]
    compared = {(entry["a"], entry["b"]) for entry in facts["verify"]["comparisons"]}
    assert {("raw", "optimized"), ("pytorch", "optimized")} <= compared
    assert all(entry["passed"] for entry in facts["verify"]["comparisons"])
    card = (out / "repository/decoder/README.md").read_text()
    assert f"{norms}" in card
    assert {"report.json", "benchmark-1.json", "model.onnx"} <= {
        p.name for p in (out / "repository/decoder/1").iterdir()
    }
    assert_consistent(out)
    ids = re.findall(r'<section id="([\w-]+)"', page.read_text())
    assert ids[0] == "summary"
    parts = {"sites", "engine", "verification-raw-optimized", "benchmark", "package"}
    assert parts <= set(ids)

    again = deploy(path, "--format", "json")
    assert {step["state"] for step in json.loads(again.stdout)["steps"]} == {"skipped"}


@needs_triton
@needs_rtx
@pytest.mark.export
def test_a_diffusion_transformer(examples: Path) -> None:
    path = examples / "diffusion.toml"
    text = path.read_text()
    path.write_text(text.replace("depth = 2", "depth = 1"))
    done = rx.run_pipeline(path)
    assert done.passed, done.failed
    assert set(states(done).values()) == {"done"}
    out = examples / "build" / "diffusion"
    model = onnx.load(out / "optimize/diffusion.onnx")
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("RMSNormalization") == done.step("optimize").facts["fused"] == 9
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == 23
    report = json.loads((out / "prove/report.json").read_text())
    assert {site["numerics"] for site in report["fused"]} == {"exact"}
    verified = done.step("verify").facts["comparisons"]
    assert [(entry["a"], entry["b"]) for entry in verified[:3]] == [
        ("raw", "optimized"),
        ("pytorch", "optimized"),
        ("pytorch", "raw"),
    ]
    assert (out / "repository/denoiser/config.pbtxt").is_file()
    assert_consistent(out)
    assert set(states(rx.run_pipeline(path)).values()) == {"skipped"}
    # Another depth is another model; diffusion.py is an input, found when it was imported.
    path.write_text(text)
    planned = rx.run_pipeline(path, dry_run=True)
    assert planned.step("export").why == 'arguments: {"depth": 1} became {"depth": 2}'
    path.write_text(text.replace("depth = 2", "depth = 1"))
    source = examples / "diffusion.py"
    source.write_text(source.read_text() + "# edited\n")
    assert rx.run_pipeline(path, dry_run=True).step("export").why == "diffusion.py was changed"
    text = to_html(done)
    assert "verification-pytorch-raw" in text
    assert "benchmark" not in re.findall(r'<section id="([\w-]+)"', text)

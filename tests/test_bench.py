"""The benchmarks and the demo run, and what they conclude from numbers is right."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench import graphs
from bench.demo.measure import worst_difference
from tests.tools.lib.command import module_command, module_environment


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = module_command(name, *arguments), module_environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_bench_optimize(tmp_path: Path) -> None:
    output = tmp_path / "optimize.json"
    words = ("--sizes", "300", "--peer-limit", "0", "--repeats", "1", "--output", str(output))
    done = _run("bench.optimize", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 3 * (1 + 2 * len(graphs.HARD))
    assert all(float(row["seconds:"]) > 0 and not row[""] for row in rows)


@pytest.mark.parametrize("nodes", [1, 500, 2_000])
def test_decoder_has_the_nodes_and_norms_it_says(nodes: int) -> None:
    model, norms = graphs.decoder(nodes)
    onnx.checker.check_model(model, full_check=True)
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Reciprocal") == norms
    assert abs(len(ops) - nodes) <= graphs.NODES_PER_LAYER + 9


def test_worst_difference() -> None:
    a = np.array([1.0, -4.0, 2.0], np.float32)
    assert worst_difference(a, a) == 0
    assert worst_difference(a + np.float32(0.5), a) == pytest.approx(0.125)
    assert worst_difference(np.array([1.0, np.nan, 2.0]), a) == np.inf
    assert worst_difference(a[:2], a) == np.inf


@pytest.mark.slow
@pytest.mark.export
def test_demo_of_one_architecture(tmp_path: Path) -> None:
    options = ["--only", "LLaMA", "--layers", "1", "--seconds", "0.1", "--no-decoder"]
    done = _run("bench.demo", *options, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything held" in done.stdout
    # Norms in PyTorch, fused, refused, proved.
    assert len(re.findall(r"(portable|onnx|ort|rx.export) +3 +3 +0 +3 ", done.stdout)) == 4
    files = {path.name for path in tmp_path.iterdir()}
    names = ("", ".portable", ".onnx", ".ort", ".straight")
    assert {f"llama{name}.onnx" for name in names} <= files
    # The page and the engine of the first model.
    assert {"llama.html", "llama.portable.engine", "llama.portable.engine.json"} <= files
    assert "3 of 3 RMSNorms in one kernel each" in done.stdout


@pytest.mark.thorough
def test_the_demo_takes_a_decoder_from_its_config_to_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")
    from bench.demo.decoder import generate

    assert generate(tmp_path) == []
    assert "64 of 64 greedy tokens are the same" in capsys.readouterr().out
    assert {"prefill.onnx", "decode.onnx"} <= {one.name for one in (tmp_path / "decoder").iterdir()}

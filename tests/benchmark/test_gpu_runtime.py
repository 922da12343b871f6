"""``python -m bench.gpu onnxruntime`` without a GPU: on the CPU's provider, and on the stand-in."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from bench.gpu import onnxruntime, steps
from bench.gpu.__main__ import main
from tests import warm
from tests.tools.cuda.provider import Provider, make_stand_in
from tests.tools.runtimes.measure import INSTALL

MODEL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 2048,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "width": 128, "rows": (1,), "problems": 5, "rounds": 2, "model": MODEL, "prompt": 8
}  # fmt: skip


def _measure(provider: str, folder: pathlib.Path, *names: str) -> tuple[dict[str, Any], str]:
    """Do steps, all by default; return the facts, and the page."""
    if provider == "cpu":
        warm.server()
    path = folder / "gpu_onnxruntime.json"
    report = steps.Report(folder, path.stem, provider, onnxruntime.tables)
    every = onnxruntime.steps(provider, None, **SMALL)
    steps.run([s for s in every if s.name in names or not names], report, minutes=5)
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_what_the_provider_rounds_is_seen(tmp_path: pathlib.Path) -> None:
    """ONNX Runtime's CPU kernel normalises the sum before it is rounded."""
    facts, page = _measure("cpu", tmp_path, "rounding", "ours")
    assert not facts["wrong"]
    assert facts["not run"] == ["ours: no --kernels"]
    for dtype in onnxruntime.TYPES:
        (line,) = (line for line in facts["seen"] if "Skip" in line and f" {dtype}: the" in line)
        rounded, unrounded = (float(part.split()[-2]) for part in line.split(", "))
        assert unrounded < 0.6 < rounded
    assert "the sum is not rounded" in page


def test_an_unknown_step_and_an_absent_provider_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["onnxruntime", "bloks", "--provider", "cpu"]) == 6
    assert "there is no step bloks" in capsys.readouterr().err
    assert main(["onnxruntime", "blocks"]) == 6  # this environment has the CPU's package
    assert "ONNX Runtime has no CUDAExecutionProvider" in capsys.readouterr().err


def test_a_fallback_is_wrong(tmp_path: pathlib.Path) -> None:
    run = onnxruntime.Run("NoSuchProvider", **SMALL)
    report = steps.Report(tmp_path, "gpu_onnxruntime", "none", onnxruntime.tables)
    step = functools.partial(onnxruntime.step, onnxruntime.rounding, run)
    steps.run([steps.Step("rounding", 60, step)], report, minutes=1)
    assert len(report.facts["wrong"]) == 1


@pytest.mark.thorough
def test_all_steps_run_in_the_cuda_provider_on_the_stand_in(tmp_path: pathlib.Path) -> None:
    """What is wrong is the numbers alone, which nothing computes there."""
    provider = Provider("1.31.1")
    if problem := provider.install():
        pytest.skip(f"onnxruntime-gpu: {problem}; with a network, {INSTALL}")
    folder = provider.runtime.folder
    library = folder / "onnxruntime/capi/libonnxruntime_providers_cuda.so"
    make_stand_in([library], tmp_path / "cuda")
    # Nothing stands in for cuDNN.
    session = "functools.partial(ort.InferenceSession, disabled_optimizers=['BiasSoftmaxFusion'])"
    (tmp_path / "sitecustomize.py").write_text(
        f"import functools\nimport onnxruntime as ort\nort.InferenceSession = {session}\n"
    )
    script = "import pathlib, sys\nfrom tests.benchmark import test_gpu_runtime as tests\n"
    script += "tests._measure('cuda', pathlib.Path(sys.argv[1]))\n"
    root = pathlib.Path(__file__).parents[2]
    paths = {"PYTHONPATH": f"{tmp_path}:{folder}:{root}", "LD_LIBRARY_PATH": str(tmp_path / "cuda")}
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, env={**os.environ, **paths}, check=True)
    facts = json.loads((tmp_path / "gpu_onnxruntime.json").read_text())
    numbers = ("ulp from every way", "token")
    assert [one for one in facts["wrong"] if not any(part in one for part in numbers)] == []
    assert facts["not run"] == ["ours: no --kernels"]
    assert [*dict.fromkeys(row["name"].split(",")[0] for row in facts["rows"])] == [
        "8 blocks", "decoder",
    ]  # fmt: skip

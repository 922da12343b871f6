"""``python -m bench.gpu onnxruntime`` without a GPU: on the CPU's provider, and on the stand-in."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from bench.gpu import runtime
from rmsnorm_export.runtime.support import CPU, CUDA
from tests.tools.cuda import stand_in
from tests.tools.cuda.provider import Provider
from tests.tools.runtimes.catalogue import INSTALL

MODEL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 2048,
}  # fmt: skip
SMALL = runtime.Sizes(width=128, rows=(1,), problems=5, rounds=2, model=MODEL, prompt=8)


def test_what_the_provider_rounds_is_seen(tmp_path: pathlib.Path) -> None:
    """ONNX Runtime's CPU kernel normalises the sum before it is rounded."""
    output = tmp_path / "results.json"
    facts = runtime.measure(runtime.Run(CPU, SMALL), ["rounding", "ours"], output)
    assert facts == json.loads(output.read_text())
    assert not facts["wrong"]
    assert facts["not run"] == ["ours: no --kernels"]
    for dtype in runtime.TYPES:
        (line,) = (line for line in facts["seen"] if "Skip" in line and f" {dtype}: the" in line)
        rounded, unrounded = (float(part.split()[-2]) for part in line.split(", "))
        assert unrounded < 0.6 < rounded
    assert "the sum is not rounded" in output.with_suffix(".md").read_text()


def test_an_unknown_step_and_an_absent_provider_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        runtime.main(["bloks"])
    assert "there is no step bloks" in capsys.readouterr().err
    assert runtime.main(["blocks"]) == 6  # this environment has the CPU's package


def test_a_step_that_ends_its_process_is_a_result(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runtime.Run("NoSuchProvider", SMALL)
    facts = runtime.measure(run, ["rounding"], tmp_path / "results.json")
    assert len(facts["wrong"]) == 1
    monkeypatch.setitem(runtime.STEPS, "rounding", (runtime.rounding, 0.0))
    facts = runtime.measure(run, ["rounding"], tmp_path / "results.json")
    assert facts["not run"] == ["rounding: not at its end after 0 s"]


@pytest.mark.thorough
def test_all_steps_run_in_the_cuda_provider_on_the_stand_in(tmp_path: pathlib.Path) -> None:
    """What is wrong is the numbers alone, which nothing computes there."""
    provider = Provider("1.31.1")
    if problem := provider.install():
        pytest.skip(f"onnxruntime-gpu: {problem}; with a network, {INSTALL}")
    folder = provider.runtime.folder
    library = folder / "onnxruntime/capi/libonnxruntime_providers_cuda.so"
    stand_in.make([library], tmp_path / "cuda")
    program = (
        "import pathlib\nfrom bench.gpu import runtime\n"
        f"run = runtime.Run({CUDA!r}, runtime.{SMALL!r})\n"
        f"steps, out = [*runtime.STEPS], pathlib.Path({str(tmp_path)!r}, 'results.json')\n"
        "if __name__ == '__main__':\n    runtime.measure(run, steps, out)\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    root = pathlib.Path(__file__).parents[2]
    paths = {"PYTHONPATH": f"{folder}:{root}", "LD_LIBRARY_PATH": str(tmp_path / "cuda")}
    subprocess.run([sys.executable, str(script)], env={**os.environ, **paths}, check=True)
    facts = json.loads((tmp_path / "results.json").read_text())
    assert all("ulp from every way" in line or "token" in line for line in facts["wrong"])
    assert facts["not run"] == ["ours: no --kernels"]
    assert [table["name"].split(",")[0] for table in facts["tables"]] == [
        "8 blocks", "8 blocks", "decoder", "decoder",
    ]  # fmt: skip

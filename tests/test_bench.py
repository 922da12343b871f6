"""The benchmarks and the demo run, and what they conclude from numbers is right."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from toolbox.command import RESULTS, ROOT

pytest.importorskip("transformers", reason="pip install 'rmsnorm-export[decoder]'")

from bench.lib.measure import worst_difference
from bench.norms import Count, is_wrong


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a benchmark in this process, which has imported PyTorch already."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def main(name: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        assert importlib.import_module(name).main() == 0

    return main


@pytest.mark.parametrize("path", sorted((ROOT / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_what_it_imports(path: Path) -> None:
    importlib.import_module(f"bench.{path.stem}")


@pytest.mark.thorough
@pytest.mark.export
def test_bench_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With exporters that fail in the place of others': a row says so, and ours are kept."""
    form = "ours, two graphs, fused"
    exporters = importlib.import_module("bench.lib.exporters")
    kept = [name for name in exporters.COMMANDS if name.startswith(form) or "ours" not in name]
    monkeypatch.setattr(exporters, "COMMANDS", {name: exporters.COMMANDS[name] for name in kept})
    real, source = importlib.import_module("bench.real"), tmp_path / "source"
    decoder = importlib.import_module("toolbox.corpus.decoders").decoder
    decoder("llama", max_position_embeddings=1024).save_pretrained(source)
    words = {chr(97 + i): i for i in range(26)} | {"Ġ": 26}
    transformers = importlib.import_module("transformers")
    transformers.Qwen2Tokenizer(vocab=words, merges=[], unk_token="a").save_pretrained(source)
    failing = {"cli": "false", "builder": "false", "mobius": "no-such-program"}
    arguments = argparse.Namespace(repeats=0, **failing)
    before = {row["exporter"]: row for row in real.measure(source, tmp_path, arguments)}
    assert "No such file" in before["mobius"]["detail"]
    exact = before["PyTorch"]["perplexity by prompt"]
    for name, row in before.items():
        if name.startswith("ours"):
            bits = next((bits for bits in ("int4", "int8") if bits in name), "f32")
            off = {"f32": 1e-4, "int8": 0.02, "int4": 0.2}[bits]
            assert row["perplexity by prompt"] == pytest.approx(exact, rel=off)
            assert row["tokens"] == "192 of 192" or bits != "f32"
            assert "token" not in row
    arguments.repeats = 1
    after = {row["exporter"]: row for row in real.measure(source, tmp_path, arguments)}
    assert {name: before[name].items() <= row.items() for name, row in after.items()} == (
        dict.fromkeys(before, True)
    )
    for role in ("token", "prompt"):
        assert len(after[form][role]["ms"]) == real.ROUNDS


@pytest.mark.slow
@pytest.mark.export
def test_bench_decoders(run: Callable[..., None], tmp_path: Path) -> None:
    """A row keeps what was measured before."""
    output, words = tmp_path / "decoders.json", ("bench.decoders", "--models", "llama", "--forms")
    run(*words, "dynamic f32", "--output", output)
    run(*words, "--add", "--output", output)
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert row["norms"] == {"prefill": 5, "decode": 5}
    assert row["tokens"] == {"dynamic f32": "64 of 64"}


@pytest.mark.slow
@pytest.mark.export
def test_bench_half(run: Callable[..., None], tmp_path: Path) -> None:
    """Of a stream beyond float16, ours is right and a plain conversion is not."""
    output = tmp_path / "half.json"
    words = ("vit", "as-is", "scaled", "ours", "onnxruntime")
    run("bench.half", "--only", *words, "--output", output)
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    errors = {(row["form"], row["tool"]): row["error"] for row in rows}
    assert 0 < errors["scaled", "ours"] < 0.01
    assert 0 < errors["as-is", "ours"] <= errors["as-is", "onnxruntime"] < 0.01
    assert not errors["scaled", "onnxruntime"] < 0.5
    assert rows[0]["share"] == rows[1]["share"] == 1
    lines = output.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ")[1:4] for line in lines if " of 2 |" in line]
    assert cells == [["2 of 2"] * 3, ["2 of 2", "1 of 2", "1 of 2"]]


@pytest.mark.slow
@pytest.mark.export
def test_bench_norms(run: Callable[..., None], tmp_path: Path) -> None:
    """Of a model whose norms have no weight, ONNX Runtime fuses none unless they are its nodes."""
    names = ("nanochat", "bert", "gemma3n")
    output = tmp_path / "norms.json"
    run("bench.norms", "--models", *names, "--output", output)
    page = (tmp_path / "norms.md").read_text(encoding="utf-8")
    assert "1 of 3 types of model, 2 exports" in page
    assert "- no RMSNorm (1): bert\n- no tiny model from " in page
    report = json.loads((tmp_path / "norms.json").read_text(encoding="utf-8"))
    kernels = {row["file"]: int(row["one kernel:"]) for row in report["rows"]}
    assert report["norms"] == kernels["ours ort"] == kernels["ours onnx"] > 0
    assert kernels["raw file"] == kernels["ours portable"] == 0
    assert report["rows"][1]["one node in the file:"] == str(report["norms"])
    drawn = xml.etree.ElementTree.parse(tmp_path / "norms.svg")
    assert len(drawn.findall(".//{*}rect")) == 1 + 3 * len(kernels)


@pytest.mark.parametrize("name", ["decoders", "half", "norms", "real"])
def test_a_page_follows_from_its_file(name: str, tmp_path: Path) -> None:
    path = RESULTS / f"{name}.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    importlib.import_module(f"bench.{name}").write(report, tmp_path / path.name)
    files = {file.name: file.read_bytes() for file in RESULTS.glob(f"{name}.*")}
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files


def test_a_result_is_wrong_beyond_its_bound_and_that_of_the_raw_file() -> None:
    for error, of_raw, wrong in ((0.02, 0.0, False), (0.04, 0.0, True), (0.04, 0.02, False)):
        assert is_wrong("llama-float16", Count(error=error), Count(error=of_raw)) == wrong
    assert is_wrong("llama-float16", Count(error=float("inf")), Count(error=0.02))


@pytest.mark.parametrize(
    ("other", "expected"),
    [([1, -4, 2], 0), ([1.5, -3.5, 2.5], 0.125), ([1, np.nan, 2], np.inf), ([1, -4], np.inf)],
)
def test_worst_difference(other: list[float], expected: float) -> None:
    a = np.array([1.0, -4.0, 2.0], np.float32)
    assert worst_difference(np.array(other, np.float32), a) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.export
def test_demo_of_one_architecture(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--only", "LLaMA", "--layers", 1, "--seconds", 0.1, "--no-decoder")
    run("bench.demo.__main__", *options, "--folder", tmp_path)
    printed = capsys.readouterr().out
    assert "everything held" in printed
    assert printed.index("files in ") < printed.index("model ") < printed.index("everything held")
    # Norms in PyTorch, fused, refused, proved.
    assert len(re.findall(r"(portable|onnx|ort|rx.export) +3 +3 +0 +3 ", printed)) == 4
    files = {path.name for path in tmp_path.iterdir()}
    names = ("", "_portable", "_onnx", "_ort", "_straight")
    assert {f"llama{name}.onnx" for name in names} <= files
    # The page and the engine of the first model.
    assert {"llama.html", "llama_portable.engine", "llama_portable.engine.json"} <= files
    assert "3 of 3 RMSNorms in one kernel each" in printed

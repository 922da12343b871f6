"""The loss of a quantization is measured on text, where a decoder has a tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.decoder.text import on_text, tokens_of
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.runtime.session import load_session, run_session
from tests.decoder.conftest import Folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.export, pytest.mark.slow]


def with_letters(made: Path, place: Path) -> Path:
    """A copy of a folder, whose tokens are letters."""
    words = {chr(97 + i): i for i in range(26)} | {"Ġ": 26}
    tokenizer = transformers.Qwen2Tokenizer(vocab=words, merges=[], unk_token="a", pad_token="a")
    shutil.copytree(made, place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def folder(one_graph: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_letters(one_graph[1], tmp_path_factory.mktemp("letters") / "one")


@pytest.fixture(scope="module")
def two(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two graphs."""
    return with_letters(decoder, tmp_path_factory.mktemp("letters") / "two")


def otherwise(model: ir.Model) -> Any:
    raise AssertionError(f"{model.graph.name} is measured on no text")


def quantized(folder: Path, **options: Any) -> Any:
    return rx.optimize(folder, quantize="int8", **options).reports["model"].quantized


def test_the_loss_is_of_the_page_or_of_a_text_that_is_given(folder: Path, tmp_path: Path) -> None:
    assert "511 tokens of page.txt of rmsnorm_export" in quantized(folder).compared
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox")
    alone = rx.optimize(folder / "model.onnx", quantize="int8", calibrate=text).report.quantized
    compared = quantized(folder, calibrate=text).compared
    assert alone is not None
    assert alone.compared == compared
    assert compared.startswith("perplexity ")
    assert compared.endswith(" tokens of mine.txt")
    tokenizer = folder / "tokenizer.json"
    kept = tokenizer.read_bytes()
    tokenizer.unlink()
    assert "(random inputs)" in quantized(folder).compared
    with pytest.raises(rx.InputError, match="cannot be made tokens"):
        quantized(folder, calibrate=text)
    tokenizer.write_bytes(kept[:-9])
    with pytest.raises(rx.InputError, match="The tokenizer cannot be read"):
        quantized(folder)
    tokenizer.write_bytes(kept)


def test_a_width_that_is_left_open_is_that_of_the_graph(two: Path) -> None:
    """onnxruntime-genai's builder names the width of a cache."""
    model = load_model(rx.optimize(two, fusions="cpu").results["decode"].model).model
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) == 4:
            value.shape = ir.Shape([*value.shape[:3], "width"])
    tokens = np.ones((1, 64), np.int64)
    on_text(tokens, "it", "int8", otherwise)(model)


def test_perplexity_is_that_of_the_logits(folder: Path) -> None:
    tokens = tokens_of(folder / "tokenizer.json", None)
    assert tokens is not None
    ids, _ = tokens
    assert ids.shape == (1, 512)
    model, broken = (ir.load(folder / "model.onnx") for _ in range(2))
    compare = on_text(*tokens, "int8", otherwise)(model)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feeds["position_ids"] = np.arange(512)[None]
    for value in model.graph.inputs:
        shape = [1 if i == 0 else size for i, size in enumerate(value.shape or ())]
        cache = np.zeros([size if isinstance(size, int) else 0 for size in shape], "f")
        feeds.setdefault(str(value.name), cache)
    logits = run_session(load_session(folder / "model.onnx"), feeds)["logits"][0, :-1]
    exact = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(ids[0, 1:])).exp()
    same = compare(model)
    assert same.problem == ""
    assert same.compared.startswith(f"perplexity {exact:.4g} to {exact:.4g} (1.000 times)")
    assert "100% of first choices the same, KL divergence 0:" in same.compared
    for value in broken.graph.initializers.values():
        if value.const_value is not None and 64 in value.const_value.shape:  # of the vocabulary
            value.const_value = ir.tensor(value.const_value.numpy() * np.float32(-1e3))
    assert compare(broken).problem.startswith("the perplexity is ")


def test_a_graph_of_single_tokens_is_measured_on_windows_of_a_text(two: Path) -> None:
    """With the same words for both graphs where the windows are the same."""
    tokens = tokens_of(two / "tokenizer.json", None)
    assert tokens is not None
    ids, name = tokens
    losses = []
    for part, given in (("prefill", ids[:, :32]), ("decode", ids[:, :32])):
        model = ir.load(two / f"{part}.onnx")
        losses.append(on_text(given, name, "int8", otherwise)(model)(model))
    assert losses[0] == losses[1]
    reports = rx.optimize(two, quantize="int8").reports
    counts = {"prefill": "511 tokens of page.txt", "decode": "496 tokens of page.txt"}
    for part, words in counts.items():
        assert words in reports[part].quantized.compared


def test_activations_are_rounded_where_a_token_is_taken_alone(two: Path) -> None:
    """In 4 bits ONNX Runtime takes a prompt faster with activations as they are."""
    made = rx.optimize(two, quantize="int4")
    losses = {part: result.report.quantized for part, result in made.results.items()}
    assert losses["prefill"].activations == "as they are"
    assert losses["decode"].activations == "in int8"
    graphs = [made.results[part].model.graph for part in ("prefill", "decode")]
    rounding = [any("accuracy_level" in n.attributes for n in graph) for graph in graphs]
    assert rounding == [False, True]

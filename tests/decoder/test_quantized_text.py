"""The loss of a quantization is measured on text, where a decoder has a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.text import on_text, tokens_of
from rmsnorm_export.runtime.session import open_session, run_session
from toolbox.corpus.decoders import decoder as decoder_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.export, pytest.mark.slow]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as one from a hub, whose tokens are letters."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    decoder_of("llama").save_pretrained(folder)
    words = {chr(97 + i): i for i in range(26)} | {"Ġ": 26}
    tokenizer = transformers.Qwen2Tokenizer(vocab=words, merges=[], unk_token="a", pad_token="a")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    made = source.parent / "f32"
    command = ["export", source, "--task", "generation", "-o", made, "--names", "optimum"]
    assert main([str(argument) for argument in command]) == 0
    return made


def quantized(folder: Path, **options: Any) -> Any:
    return rx.optimize(folder, quantize="int8", **options).reports["model"].quantized


def test_the_loss_is_of_the_page_or_of_a_text_that_is_given(folder: Path, tmp_path: Path) -> None:
    assert "511 tokens of page.txt of rmsnorm_export" in quantized(folder).compared
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox")
    compared = quantized(folder, calibrate=text).compared
    assert compared.startswith("perplexity ")
    assert compared.endswith(" tokens of mine.txt")
    tokenizer = folder / "tokenizer.json"
    kept = tokenizer.read_bytes()
    tokenizer.unlink()
    assert "(random inputs)" in quantized(folder).compared
    with pytest.raises(rx.InputError, match="cannot be made tokens"):
        quantized(folder, calibrate=text)
    tokenizer.write_bytes(kept)


def test_perplexity_is_that_of_the_logits(folder: Path) -> None:
    tokens = tokens_of(folder / "tokenizer.json", None)
    assert tokens is not None
    ids, _ = tokens
    assert ids.shape == (1, 512)
    model, broken = (ir.load(folder / "model.onnx") for _ in range(2))
    measure = on_text(model.graph, *tokens, "int8")
    assert measure is not None
    compare = measure(model)
    feeds = {name: np.ones_like(ids) for name in ("input_ids", "attention_mask", "position_ids")}
    feeds |= {"input_ids": ids, "position_ids": np.arange(512)[None]}
    for value in model.graph.inputs:
        shape = [1 if i == 0 else size for i, size in enumerate(value.shape or ())]
        cache = np.zeros([size if isinstance(size, int) else 0 for size in shape], "f")
        feeds.setdefault(str(value.name), cache)
    logits = run_session(open_session(folder / "model.onnx"), feeds)
    exact = torch.nn.functional.cross_entropy(
        torch.tensor(logits["logits"][0, :-1]), torch.tensor(ids[0, 1:])
    )
    same = compare(model)
    assert same.problem == ""
    assert same.compared.startswith(
        f"perplexity {exact.exp():.4g} to {exact.exp():.4g} (1.000 times)"
    )
    assert "100% of first choices the same, KL divergence 0:" in same.compared
    for value in broken.graph.initializers.values():
        if value.const_value is not None and value.const_value.shape[0] == 64:  # of the vocabulary
            value.const_value = ir.tensor(value.const_value.numpy() * np.float32(-1e3))
    assert compare(broken).problem.startswith("the perplexity is ")

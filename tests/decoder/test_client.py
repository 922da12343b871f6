"""The client of the examples: it asks a server for the tokens of a packaged decoder."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import torch
from onnxruntime import InferenceSession

import rmsnorm_export as rx
from tests.decoder.conftest import model_of, served

pytestmark = [pytest.mark.export, pytest.mark.slow]

CLIENT = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "docs/examples/triton_decoder.py")
)


def test_a_server_holds_the_weights_of_one_graph_once(tmp_path: Path) -> None:
    """The client streams, and ends with its rows; ONNX Runtime answers as the server would."""
    model, made = model_of("llama"), tmp_path / "made"
    rx.export_generation(model, made, multi_token=True)
    (packaged,) = rx.package_model(made, tmp_path / "models", name="llm", kind="cpu").models
    home = tmp_path / "models" / packaged.name
    stored = sum(path.stat().st_size for path in home.rglob("*.data"))
    assert stored <= 1.05 * sum(path.stat().st_size for path in made.glob("*.data"))
    ask, inputs = served({packaged.name: InferenceSession(home / "1/model.onnx")})
    calls = []

    def infer(name: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(name)
        return ask(name, feeds)

    ids, mask = np.random.default_rng(0).integers(3, 60, (2, 6)), np.ones((2, 6), np.int64)
    mask[1, :2] = 0
    arguments = (infer, inputs, ids, mask, 16)
    how = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    masked = {"attention_mask": torch.tensor(mask)}
    expected = np.asarray(model.generate(torch.tensor(ids), **masked, **how)[:, -16:])
    np.testing.assert_array_equal(CLIENT["generate"](*arguments), expected)
    streamed = CLIENT["stream"](*arguments)
    calls.clear()
    next(streamed)
    assert len(calls) == 1  # each token as soon as it is known
    ends = {int(expected[0, 3]), int(expected[1, 5])}
    tokens = CLIENT["generate"](*arguments, eos=ends, pad=7)
    stop = [int(np.isin(row, [*ends]).argmax()) for row in expected]
    assert tokens.shape[1] == max(stop) + 1
    for row, full, end in zip(tokens, expected, stop, strict=True):
        np.testing.assert_array_equal(row[: end + 1], full[: end + 1])
        assert set(row[end + 1 :]) <= {7}


@pytest.mark.parametrize("how", [{}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.4}])
def test_the_client_samples_what_transformers_would(how: dict[str, Any]) -> None:
    """20,000 draws: none outside, and each as often as its share, within five deviations."""
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 12)) * 2)
    from transformers.generation import logits_process as of

    scores = logits / 0.8
    if "top_k" in how:
        scores = of.TopKLogitsWarper(how["top_k"])(None, scores)
    if "top_p" in how:
        scores = of.TopPLogitsWarper(how["top_p"])(None, scores)
    shares = scores.softmax(-1)[0].numpy()
    count = 20_000
    draw = CLIENT["sampling"](temperature=0.8, seed=3, **how)
    drawn = np.bincount(draw(np.repeat(logits.numpy(), count, axis=0)), minlength=12)
    assert not drawn[shares == 0].any()
    allowed = 5 * np.sqrt(count * shares * (1 - shares)) + 1e-9
    assert (np.abs(drawn - count * shares) <= allowed).all()
    again = CLIENT["sampling"](temperature=0.8, seed=3, **how)(logits.numpy())
    np.testing.assert_array_equal(again, CLIENT["sampling"](0.8, seed=3, **how)(logits.numpy()))

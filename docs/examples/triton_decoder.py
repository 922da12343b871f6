"""Generate text with a decoder in Triton, token by token, the cache in the client's hands.

For the models that ``rmsnorm-export package`` makes of a decoder's folder, with a cache that grows:
one for prompt and tokens, which holds the weights once (``export --multi-token`` or ``--names``),
or prefill and decode. It needs NumPy and ``pip install 'tritonclient[http]'``. The server keeps no
state between requests, so any instance answers any of them, and what a client that went away held
is gone with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Declared = Mapping[str, tuple[Any, list[int]]]
Choose = Callable[[Any], Any]
"""Takes logits [batch, vocabulary] and returns tokens [batch]."""


def greedy(logits: Any) -> Any:
    """Return the likeliest tokens."""
    return logits.argmax(-1)


def sampling(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None
) -> Choose:
    """Return what draws tokens at random, as transformers does in this order.

    Args:
        temperature: by which the logits are divided.
        top_k: only so many of the likeliest; 0: all.
        top_p: only the likeliest that have this share together.
        seed: of the random numbers; None: others each time.
    """
    random = np.random.default_rng(seed)

    def draw(logits: Any) -> Any:
        order = np.argsort(-logits, axis=-1, kind="stable")
        scores = np.take_along_axis(logits, order, axis=-1).astype(np.float64) / temperature
        shares = np.exp(scores - scores[:, :1])
        shares[:, top_k or shares.shape[1] :] = 0
        shares /= shares.sum(-1, keepdims=True)
        shares[shares.cumsum(-1) - shares >= top_p] = 0
        reached = shares.cumsum(-1) > random.random((len(shares), 1)) * shares.sum(-1)[:, None]
        return np.take_along_axis(order, reached.argmax(-1)[:, None], axis=-1)[:, 0]

    return draw


def stream(
    infer: Callable[[str, Arrays], Arrays],
    inputs: Mapping[str, Declared],
    ids: Any,
    mask: Any,
    tokens: int,
    *,
    choose: Choose = greedy,
    eos: Collection[int] = (),
    pad: int = 0,
) -> Iterator[Any]:
    """Yield tokens [batch] after ids [batch, sequence], each as soon as it is known.

    Args:
        infer: called with a model's name and its inputs; returns its outputs.
        inputs: of the model, or of prefill and of decode in this order: type and shape of each by
            its name.
        ids: the prompt.
        mask: 0 where a row is padded, on the left, and 1 elsewhere.
        tokens: how many at most; it ends before when every row has ended.
        choose: ``greedy`` or what ``sampling`` returns.
        eos: tokens that end a row.
        pad: what comes behind the end of a row.
    """
    prefill, *_, decode = [*inputs] * 2
    ended, cache = np.zeros(len(ids), bool), {}
    for name, (kind, shape) in inputs[prefill].items():
        sizes = [size if size >= 0 else 0 for size in shape]
        cache[name] = np.zeros([len(ids), *sizes[1:]], kind)
    for step in range(tokens):
        model = decode if step else prefill
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        answer = infer(model, {name: {**cache, **given}[name] for name in inputs[model]})
        chosen = np.where(ended, pad, choose(answer["logits"][:, -1]))
        yield chosen
        ended |= np.isin(chosen, [*eos])
        if ended.all():
            return
        ids = chosen[:, None]
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        for name, value in answer.items():
            leaf = name.removeprefix("output.")
            cache[leaf] = cache[f"input.{leaf}"] = value
            cache[name.replace("present.", "past_key_values.", 1)] = value


def generate(*arguments: Any, **how: Any) -> Any:
    """Return all tokens [batch, tokens] that ``stream`` yields; arguments are its own."""
    return np.stack([*stream(*arguments, **how)], axis=1)


def triton(url: str, *models: str) -> tuple[Callable[[str, Arrays], Arrays], dict[str, Any]]:
    """Return ``infer`` and ``inputs`` of ``stream``, of a Triton server."""
    import tritonclient.http as http
    from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

    client = http.InferenceServerClient(url)

    def infer(model: str, given: Arrays) -> Arrays:
        tensors = []
        for name, array in given.items():
            tensors.append(http.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            tensors[-1].set_data_from_numpy(np.ascontiguousarray(array))
        answer = client.infer(model, tensors)
        names = [one["name"] for one in answer.get_response()["outputs"]]
        return {name: answer.as_numpy(name) for name in names}

    return infer, {
        model: {
            one["name"]: (triton_to_np_dtype(one["datatype"]), one["shape"])
            for one in client.get_model_metadata(model)["inputs"]
        }
        for model in models
    }


if __name__ == "__main__":
    import sys

    prompt = np.array([[1, 2, 3]])  # of the model's tokenizer
    answers = triton("localhost:8000", *sys.argv[1:])  # triton_decoder.py NAME [NAME_decode]
    how = {"choose": sampling(temperature=0.7, top_p=0.9), "eos": [2]}
    for token in stream(*answers, prompt, np.ones_like(prompt), 16, **how):
        print(token[0], flush=True)

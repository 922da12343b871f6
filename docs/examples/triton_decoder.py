"""Generate text with a decoder in Triton: prefill, then decode, the cache in the client's hands.

For the models that ``rmsnorm-export package`` makes of a decoder's folder, with a cache that grows;
it needs NumPy and ``pip install 'tritonclient[http]'``. The server keeps no state between requests,
so any instance answers any of them, and what a client that went away held is gone with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Declared = Mapping[str, tuple[Any, list[int]]]


def generate(
    infer: Callable[[str, Arrays], Arrays],
    inputs: Mapping[str, Declared],
    ids: Any,
    mask: Any,
    tokens: int,
) -> Any:
    """Return the likeliest tokens [batch, tokens] after ids [batch, sequence].

    Args:
        infer: called with a model's name and its inputs; returns its outputs.
        inputs: of prefill and of decode, in this order: type and shape of each by its name.
        ids: the prompt.
        mask: 0 where a row is padded, on the left, and 1 elsewhere.
        tokens: how many to generate.
    """
    prefill, decode = inputs
    made, cache = [], {}
    for name, (kind, shape) in inputs[prefill].items():
        sizes = [size if size >= 0 else 0 for size in shape]
        cache[name] = np.zeros([len(ids), *sizes[1:]], kind)
    for step in range(tokens):
        model = decode if step else prefill
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        answer = infer(model, {name: {**cache, **given}[name] for name in inputs[model]})
        ids = answer["logits"][:, -1:].argmax(-1)
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        for name, value in answer.items():
            leaf = name.removeprefix("output.")
            cache[leaf] = cache[f"input.{leaf}"] = value
        made.append(ids)
    return np.concatenate(made, axis=1)


def triton(url: str, *models: str) -> tuple[Callable[[str, Arrays], Arrays], dict[str, Any]]:
    """Return ``infer`` and ``inputs`` of ``generate``, of a Triton server."""
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
    answers = triton("localhost:8000", *sys.argv[1:])  # triton_decoder.py NAME_prefill NAME_decode
    print(generate(*answers, prompt, np.ones_like(prompt), 16))

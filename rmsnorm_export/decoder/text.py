"""What a quantization costs on a text: perplexity, first choices, and how far choices are off."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from rmsnorm_export.decoder.bundle import TOKENIZER, states_of
from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.comparison import run_model
from rmsnorm_export.quantize.quantize import Loss, Measure
from rmsnorm_export.quantize.result import QUANTIZED_PERPLEXITY, Quantize
from rmsnorm_export.system.files import StrPath, read_text

PAGE = Path(__file__).with_name("page.txt")
"""English prose of this project."""
_TOKENS = 512


def tokens_of(tokenizer: Path | None, text: StrPath | None) -> tuple[Array, str] | None:
    """Return the first tokens of a text, [1, tokens], and its name; None without a tokenizer.

    Args:
        tokenizer: the file ``tokenizer.json`` of a model.
        text: a file; None: the page of this package.

    Raises:
        InputError: a text is given and cannot be read, or there is no tokenizer for it.
    """
    file = PAGE if text is None else Path(text)
    known = tokenizer is not None and importlib.util.find_spec("tokenizers") is not None
    if tokenizer is None or not known:
        if text is None:
            return None
        found = "no tokenizers package" if tokenizer else f"no {TOKENIZER} beside the model"
        fix = "omit --calibrate; or give a folder with a tokenizer, and install tokenizers"
        raise InputError(f"{file.name} cannot be made tokens.", found=found, fix=fix)
    from tokenizers import Tokenizer

    words = read_text(file, "a text", fix="give a text in UTF-8")
    ids = Tokenizer.from_file(str(tokenizer)).encode(words).ids[:_TOKENS]
    if len(ids) < 2:
        raise InputError("The text has no two tokens.", found=str(file), fix="give a longer one")
    return np.array([ids], np.int64), f"{file.name}{'' if text else ' of rmsnorm_export'}"


def on_text(graph: ir.Graph, tokens: Array, name: str, kind: Quantize) -> Measure | None:
    """Return what compares two decoders on a text; None for a graph that takes other inputs.

    A quantization may raise the perplexity ``QUANTIZED_PERPLEXITY`` times.

    Args:
        graph: takes a prompt, and an empty cache where it has one.
        tokens: [1, tokens] of the text.
        name: of the text.
        kind: of the quantization.
    """
    feeds = _feeds(graph, tokens)
    if feeds is None:
        return None

    def measure(model: ir.Model) -> Callable[[ir.Model], Loss]:
        try:
            before = _logarithms(run_model(model, feeds))
        except Error as error:
            unknown = f"the graph before does not run: {one_line(error.found, 300)}"
            return lambda _: Loss(unknown=unknown)

        def compare(quantized: ir.Model) -> Loss:
            try:
                after = _logarithms(run_model(quantized, feeds))
            except Error as error:
                return Loss(unknown=one_line(error.found, 300), fails=True)
            return _loss(before, after, tokens[0, 1:], name, QUANTIZED_PERPLEXITY[kind])

        return compare

    return measure


def _feeds(graph: ir.Graph, tokens: Array) -> Mapping[str, Array] | None:
    """Return the inputs of a prompt without padding; None where there are others."""
    known = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.arange(tokens.shape[1])[None],
    }
    states, feeds = states_of(graph), {}
    for value in graph.inputs:
        name, sizes = str(value.name), list(value.shape or ())
        if name in states and len(sizes) == 4 and value.dtype is not None:
            shape = [1, *(size if isinstance(size, int) else 0 for size in sizes[1:])]
            feeds[name] = np.zeros(shape, value.dtype.numpy())
        elif name in known and len(sizes) == 2 and not isinstance(sizes[1], int):
            feeds[name] = known[name]
        else:
            return None
    logits = [value.shape for value in graph.outputs if value.name == "logits"]
    width = logits[0][-1] if logits and logits[0] else 0
    return (
        feeds if "input_ids" in feeds and isinstance(width, int) and width > tokens.max() else None
    )


def _logarithms(outputs: Mapping[str, Array]) -> Array:
    """Return the logarithms of the probabilities of the next token, [tokens - 1, vocabulary]."""
    logits: Array = outputs["logits"][0, :-1].astype(np.float32)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def _loss(before: Array, after: Array, next_ones: Array, name: str, most: float) -> Loss:
    if before.shape != after.shape or len(before) != len(next_ones):
        return Loss(unknown="the graph gives no logits for each token")
    places = np.arange(len(next_ones))
    old, new = (
        float(np.exp(-one[places, next_ones].astype(np.float64).mean())) for one in (before, after)
    )
    same = float((before.argmax(-1) == after.argmax(-1)).mean())
    divergence = float((np.exp(before) * (before - after)).sum(-1).mean())
    words = (
        f"perplexity {old:.4g} to {new:.4g} ({new / old:.3f} times), {same:.0%} of first choices "
        f"the same, KL divergence {divergence:.2g}: {len(places)} tokens of {name}"
    )
    problem = ""
    if not new <= most * old:
        problem = f"the perplexity is {new / old:.3f} times what it was, {most:g} allowed"
    return Loss(words, problem)

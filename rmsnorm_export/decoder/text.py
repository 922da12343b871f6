"""What a quantization costs on a text: perplexity, first choices, and how far choices are off."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from rmsnorm_export.decoder.bundle import TOKENIZER, states_of
from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.comparison import opened
from rmsnorm_export.quantize.left import Loss
from rmsnorm_export.quantize.quantize import Measure
from rmsnorm_export.quantize.result import QUANTIZED_PERPLEXITY, Quantize
from rmsnorm_export.rewrite.options import RewriteOptions
from rmsnorm_export.runtime.inputs import graph_inputs, numpy_type
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.system.files import StrPath, read_text, refusals_as

PAGE = Path(__file__).with_name("page.txt")
"""English prose of this project."""
_TOKENS, _WINDOW, _LOGITS = 512, 32, 2**25
"""Of a text, of what is run side by side, and how many logits are held: 128 MiB a model."""
_OF_TEXT = ("input_ids", "attention_mask", "position_ids")


Text = tuple[Array, str]
"""Tokens, [1, tokens], and the name of what they are of."""


def text_for(options: RewriteOptions, tokenizer: Path | None) -> Text | None:
    """Return what a quantization is measured on, see `tokens_of`; None where there is none."""
    return None if options.quantize is None else tokens_of(tokenizer, options.calibrate)


def tokens_of(tokenizer: Path | None, text: StrPath | None) -> Text | None:
    """Return the first tokens of a text, [1, tokens], and its name; None without a tokenizer.

    Args:
        tokenizer: the file ``tokenizer.json`` of a model.
        text: a file; None: the page of this package.

    Raises:
        InputError: a text is given and cannot be read, or there is no tokenizer for it; or the
            tokenizer cannot be read.
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
    fix = f"put back the {TOKENIZER} of the model, or remove it"
    with refusals_as("The tokenizer cannot be read.", tokenizer, fix=fix, also=(Exception,)):
        ids = Tokenizer.from_file(str(tokenizer)).encode(words).ids[:_TOKENS]
    if len(ids) < 2:
        raise InputError("The text has no two tokens.", found=str(file), fix="give a longer one")
    return np.array([ids], np.int64), f"{file.name}{'' if text else ' of rmsnorm_export'}"


def on_text(tokens: Array, name: str, kind: Quantize, otherwise: Measure) -> Measure:
    """Return what compares two decoders on a text.

    A quantization may raise the perplexity ``QUANTIZED_PERPLEXITY`` times.

    Args:
        tokens: [1, tokens] of the text.
        name: of the text.
        kind: of the quantization.
        otherwise: for a graph that takes something else, or does not run on the text.
    """

    def measure(model: ir.Model) -> Callable[[ir.Model], Loss]:
        single, vocabulary = _takes_one_token(model.graph), _vocabulary(model.graph)
        if single is None or not tokens.max() < vocabulary:
            return otherwise(model)
        rows = tokens[:, : _LOGITS // vocabulary]
        if single:  # windows side by side, since each step takes a run
            rows = rows[:, : rows.shape[1] // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
        try:
            before = _logarithms(model, rows, single=single)
        except Error:
            return otherwise(model)

        def compare(quantized: ir.Model) -> Loss:
            try:
                after = _logarithms(quantized, rows, single=single)
            except Error as error:
                return Loss(unknown=one_line(error.found, 300), fails=True)
            return _loss(before, after, rows[:, 1:], name, QUANTIZED_PERPLEXITY[kind])

        return compare if before.shape[:2] == rows[:, 1:].shape and rows.size else otherwise(model)

    return measure


def _takes_one_token(graph: ir.Graph) -> bool | None:
    """Return whether a graph takes one token at a time; None where it takes no text alone."""
    states, counts = states_of(graph), []
    for value in graph.inputs:
        name, fixed = str(value.name), [isinstance(size, int) for size in value.shape or ()]
        if name in _OF_TEXT and len(fixed) == 2:
            if name == "input_ids" and value.shape is not None:
                counts.append(value.shape[1])
        elif not states.get(name) or len(fixed) != 4 or fixed[2] or value.dtype is None:
            return None  # another input, or a cache of fixed size
    if len(counts) != 1 or (isinstance(counts[0], int) and counts[0] != 1):
        return None
    return bool(counts[0] == 1)


def _vocabulary(graph: ir.Graph) -> int:
    """Return how many tokens the logits of a graph are of; 0 where it does not say."""
    shapes = [value.shape for value in graph.outputs if value.name == "logits"]
    size = shapes[0][-1] if shapes and shapes[0] else 0
    return size if isinstance(size, int) else 0


def _logarithms(model: ir.Model, rows: Array, *, single: bool) -> Array:
    """Return the logarithms of the probabilities of the next tokens, [rows, tokens - 1, all]."""
    states, taken = states_of(model.graph), graph_inputs(model)
    feeds = {
        name: np.zeros(
            [len(rows), *(size if isinstance(size, int) else 0 for size in (item.shape or ())[1:])],
            numpy_type(item.dtype),
        )
        for name, item in taken.items()
        if name in states
    }
    count, parts = rows.shape[1] - 1, []
    with opened(model) as session:
        for start in range(count) if single else [0]:
            end = start + 1 if single else count
            positions = np.broadcast_to(np.arange(start, end), (len(rows), end - start))
            mask = np.ones((len(rows), end), np.int64)
            given = dict(zip(_OF_TEXT, (rows[:, start:end], mask, positions), strict=True))
            feeds |= {name: array for name, array in given.items() if name in taken}
            outputs = run_session(session, feeds)
            feeds |= {name: outputs[after] for name, after in states.items()}
            parts.append(outputs["logits"].astype(np.float32))
    logits: Array = np.concatenate(parts, axis=1)
    for one in logits.reshape(-1, logits.shape[-1]):  # all at once take several times the memory
        one -= one.max()
        one -= np.log(np.exp(one).sum())
    return logits


def _loss(before: Array, after: Array, next_ones: Array, name: str, most: float) -> Loss:
    old, new = (
        float(np.exp(-np.take_along_axis(one, next_ones[..., None], -1).mean(dtype=np.float64)))
        for one in (before, after)
    )
    same = float((before.argmax(-1) == after.argmax(-1)).mean())
    pairs = zip(*(one.reshape(-1, one.shape[-1]) for one in (before, after)), strict=True)
    divergence = float(np.mean([(np.exp(a) * (a - b)).sum() for a, b in pairs]))
    words = (
        f"perplexity {old:.4g} to {new:.4g} ({new / old:.3f} times), {same:.0%} of first choices "
        f"the same, KL divergence {divergence:.2g}: {next_ones.size} tokens of {name}"
    )
    problem = ""
    if not new <= most * old:
        problem = f"the perplexity is {new / old:.3f} times what it was, {most:g} allowed"
    return Loss(words, problem, amount=divergence)

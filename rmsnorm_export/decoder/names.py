"""Names of the inputs, outputs and dimensions of a decoder's graph, as its users know them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.decoder.bundle import state_name, states_of
from rmsnorm_export.decoder.caches import CachePart
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.order import all_graphs, variables_in

_SYMBOL = re.compile(r"\b[A-Za-z_]\w*\b")
States = dict[str, ir.Shape]
"""What the graphs of a model give of its cache, by the paths of the leaves."""

_OF_ENCODER = {name: name for name in ("input_ids", "input_features", "attention_mask")}
OF_DECODER = {
    "decoder_input_ids": "input_ids", "decoder_attention_mask": "attention_mask",
    "encoder_outputs.last_hidden_state": "encoder_hidden_states",
    "attention_mask": "encoder_attention_mask", "cache_position": "cache_position",
}  # fmt: skip
"""What optimum-onnx gives a decoder behind an encoder, by transformers' names."""

OPTIMUM = {
    "encoder": ("encoder_model", _OF_ENCODER),
    "prefill": ("decoder_model", OF_DECODER),
    "decode": ("decoder_with_past_model", OF_DECODER),
}
"""The files of an encoder and its decoder, and their inputs by transformers' names."""

_ENCODED = ("encoder_outputs.last_hidden_state", 3)
_RESULTS = {"logits", "last_hidden_state"}


def name_dimensions(
    model: ir.Model, caches: Mapping[str, CachePart], static_cache: int | None, states: States
) -> None:
    """Use ``batch``, ``sequence`` and ``past`` for the symbols that tracing invented, in place.

    A mask over cache and tokens has the dimension ``past + sequence``; what an encoder has made is
    of ``encoder_sequence``.

    Args:
        model: the graph.
        caches: paths of the keys and values among its inputs.
        static_cache: the size of the caches, which stands for ``past`` then.
        states: of the graphs before this one, whose fixed sizes hold here, too (the widths of
            Mamba's convolutions); this graph's are added.
    """
    shapes = {str(value.name): value.shape for value in model.graph.inputs if value.shape}
    names: dict[str, str] = {}

    def call(dim: int | ir.SymbolicDim, name: object) -> None:
        # PyTorch writes a size that tracing has fixed as a symbol, "5".
        if isinstance(dim, ir.SymbolicDim) and dim.value and not dim.value.isdecimal():
            names.setdefault(dim.value, str(name))

    sequence, past = "sequence", ""
    for name in ("decoder_input_ids", "input_ids", "inputs_embeds"):
        if name in shapes:
            rows, tokens, *_ = shapes[name]
            call(rows, "batch")
            call(tokens, "sequence")
            sequence = str(_renamed(names, tokens))
            break
    for name in states_of(model.graph):
        if not (shape := shapes.get(name)):
            continue
        call(shape[0], "batch")
        part = caches.get(state_name(name))
        if part is not None and len(shape) == 4:
            call(shape[2], "encoder_sequence" if part.cross else static_cache or "past")
            past = past if part.cross else past or str(_renamed(names, shape[2]))
            continue
        for dim, size in zip(shape, states.get(state_name(name), ()), strict=False):
            if isinstance(size, int):
                call(dim, size)
    total = past if past.isdecimal() else f"{past} + {sequence}" if past else "sequence"
    # Of sound an encoder may read more frames than it gives; of text tracing finds one length.
    total = "encoder_input" if "decoder_input_ids" in shapes else total
    masks = ("attention_mask", 2), ("token_type_ids", 2), ("mm_token_type_ids", 2)
    for name, rank in (_ENCODED, *masks):
        if len(shapes.get(name, ())) == rank:
            call(shapes[name][0], "batch")
            call(shapes[name][1], "encoder_sequence" if name == _ENCODED[0] else total)
    for value in variables_in(all_graphs(model)):
        if value.shape is not None and any(not isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([_renamed(names, dim) for dim in value.shape])
    states |= {state_name(str(v.name)): v.shape for v in model.graph.outputs if v.shape is not None}


def name_by_layer(
    model: ir.Model, caches: Mapping[str, CachePart], consumer: str, taken: Mapping[str, str]
) -> None:
    """``past_key_values.0.key`` and ``present.0.key`` for the caches, layer by layer, in place.

    What nothing reads is left out: of an encoder decode needs the keys and values alone.

    Args:
        model: the graph.
        caches: paths of the keys and values among the inputs of all graphs of the model.
        consumer: who takes the graph.
        taken: what it calls the other inputs of a graph beside others; of one alone all stay.

    Raises:
        UsageError: the cache is none of keys and values, positions have several axes, or the
            consumer does not know an input.
    """
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    if (positions := inputs.get("position_ids")) and len(positions.shape or ()) > 2:
        what = f"The positions of this model's tokens have several axes, which {consumer} lacks."
        raise UsageError(what, found=f"position_ids {positions.shape}", fix="omit --names")
    parts = {v: caches.get(state_name(str(v.name))) for v in (*graph.inputs, *graph.outputs)}
    for name, output in states_of(graph).items():
        if parts[inputs[name]] is None or not output:
            raise UsageError(
                f"This model's cache cannot be held by {consumer}.",
                found=f"{name}, which is no layer's keys or values",
                fix="omit --names",
            )
    unasked = {None, *(part for v in graph.inputs if (part := parts[v]) and part.cross)}
    kept = [v for v in graph.outputs if v.name in _RESULTS or parts[v] not in unasked]
    graph.outputs[:] = kept
    passes.RemoveUnusedNodesPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if parts[value] or value.uses()]
    for values, cache in ((graph.inputs, "past_key_values"), (graph.outputs, "present")):
        values[:] = sorted(values, key=lambda value: _place(parts[value]))
        for value in values:
            if part := parts[value]:
                side = ("encoder." if part.cross else "decoder.") if taken else ""
                value.name = f"{cache}.{part.layer}.{side}{part.kind}"
    for name, value in inputs.items() if taken else ():
        if value.is_graph_input() and not parts[value]:
            value.name = called(name, taken, consumer)
    passes.NameFixPass()(model)


def called(name: str, taken: Mapping[str, str], consumer: str) -> str:
    """Return what a consumer calls an input of a graph beside others.

    Raises:
        UsageError: it does not know it.
    """
    if name not in taken:
        what = f"{consumer} does not give this model all that it reads."
        raise UsageError(what, found=f"the input {name}", fix="omit --names")
    return taken[name]


def _place(part: CachePart | None) -> tuple[int, bool, str]:
    """Return where a value stands: in front of the caches; layer by layer among them."""
    return (part.layer, part.cross, part.kind) if part else (-1, False, "")


def _renamed(names: dict[str, str], dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None

    def replaced(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        return f"({name})" if " " in name else name

    text = names.get(dim.value) or _SYMBOL.sub(replaced, dim.value)
    return int(text) if text.isdecimal() else text

"""Names of the inputs, outputs and dimensions of a decoder's graph, as its users know them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import state_name, states_of
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.torch.generation.caches import CachePart

_SYMBOL = re.compile(r"\b[A-Za-z_]\w*\b")
States = dict[str, ir.Shape]
"""What the graphs of a model give of its cache, by the paths of the leaves."""


def name_dimensions(
    model: ir.Model, caches: Mapping[str, CachePart], static_cache: int | None, states: States
) -> None:
    """Use ``batch``, ``sequence`` and ``past`` for the symbols that tracing invented, in place.

    A mask over cache and tokens has the dimension ``past + sequence``; what an encoder has read is
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
        if part is not None and len(shape) == 4 and not part.cross:
            call(shape[2], static_cache or "past")
            past = past or str(_renamed(names, shape[2]))
            continue
        for dim, size in zip(shape, states.get(state_name(name), ()), strict=False):
            if isinstance(size, int):
                call(dim, size)
    total = past if past.isdecimal() else f"{past} + {sequence}" if past else "sequence"
    encoded = "encoder_sequence" if "decoder_input_ids" in shapes else total
    masks = ("attention_mask", 2), ("token_type_ids", 2), ("mm_token_type_ids", 2)
    for name, rank in (*masks, ("encoder_outputs.last_hidden_state", 3)):
        if len(shapes.get(name, ())) == rank:
            call(shapes[name][0], "batch")
            call(shapes[name][1], encoded)
    for value in _values(model):
        if value.shape is not None and any(not isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([_renamed(names, dim) for dim in value.shape])
    states |= {state_name(str(v.name)): v.shape for v in model.graph.outputs if v.shape is not None}


def name_by_layer(graph: ir.Graph, caches: Mapping[str, CachePart], consumer: str) -> None:
    """``past_key_values.0.key`` and ``present.0.key`` for the caches, in place.

    Raises:
        UsageError: the cache is none of keys and values, or positions have several axes.
    """
    values = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    if (positions := values.get("position_ids")) and len(positions.shape or ()) > 2:
        raise UsageError(
            f"The positions of this model's tokens have several axes, which {consumer} lacks.",
            found=f"position_ids {positions.shape}",
            fix="omit --names",
        )
    for name, output in states_of(graph).items():
        part = caches.get(state_name(name))
        if part is None or part.cross or not output:
            raise UsageError(
                f"This model's cache cannot be held by {consumer}.",
                found=f"{name}, which is no layer's keys or values",
                fix="omit --names",
            )
        values[name].name = f"past_key_values.{part.layer}.{part.kind}"
        values[output].name = f"present.{part.layer}.{part.kind}"


def _renamed(names: dict[str, str], dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None

    def replaced(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        return f"({name})" if " " in name else name

    text = names.get(dim.value) or _SYMBOL.sub(replaced, dim.value)
    return int(text) if text.isdecimal() else text


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for inner in all_graphs(model):
        yield from inner.inputs
        yield from (output for node in inner for output in node.outputs)

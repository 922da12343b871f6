"""Names of the inputs, outputs and dimensions of a decoder's graph, as its users know them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import is_state, state_name
from rmsnorm_export.graph.order import all_graphs

_SYMBOL = re.compile(r"\b[A-Za-z_]\w*\b")
_LEAF = re.compile(
    r"(?:input\.|output\.)?past_key_values\.(?:(?:self|(cross))_attention_cache\.)?layers"
    r"\.(\d+)\.(key|value)s"
)


States = dict[str, ir.Shape]
"""What the graphs of a model give of its cache, by the paths of the leaves."""


def name_dimensions(
    model: ir.Model, static_cache: int | None = None, states: States | None = None
) -> None:
    """``batch``, ``sequence`` and ``past`` for the symbols that tracing invented, in place.

    A mask over cache and tokens has the dimension ``past + sequence``; what an encoder has read is
    of ``encoder_sequence``.

    Args:
        static_cache: the size of the caches, which stands for ``past`` then.
        states: of the graphs before this one, whose fixed sizes hold here, too (the widths of
            Mamba's convolutions); this graph's are added.
    """
    graph = model.graph
    states = {} if states is None else states
    names: dict[str, str] = {}
    given = {str(value.name): value for value in graph.inputs}
    order = ("decoder_input_ids", "input_ids", "inputs_embeds")
    tokens = next((given[name] for name in order if name in given), None)
    encodes = "decoder_input_ids" in given
    sequence: int | str = "sequence"
    if tokens is not None and tokens.shape is not None:
        _call(names, tokens.shape[0], "batch")
        _call(names, tokens.shape[1], "sequence")
        sequence = tokens.shape[1] if isinstance(tokens.shape[1], int) else "sequence"
    past: str | int | None = None
    for name, value in given.items():
        if value.shape is None or not value.shape or not is_state(name):
            continue
        _call(names, value.shape[0], "batch")
        leaf = _LEAF.fullmatch(name)
        if leaf is not None and len(value.shape) == 4 and not leaf[1]:
            _call(names, value.shape[2], str(static_cache or "past"))
            past = past or _text(names, value.shape[2])
            continue
        for dim, before in zip(value.shape, states.get(state_name(name), ()), strict=False):
            if isinstance(before, int):
                _call(names, dim, str(before))
    total = f"{past} + {sequence}" if isinstance(past, str) else past or "sequence"
    for name in ("attention_mask", "encoder_outputs.last_hidden_state"):
        shape = None if name not in given else given[name].shape
        if shape is not None and len(shape) == (2 if name == "attention_mask" else 3):
            _call(names, shape[0], "batch")
            _call(names, shape[1], "encoder_sequence" if encodes else str(total))
    for value in _values(model):
        if value.shape is not None and any(not isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([_renamed(names, dim) for dim in value.shape])
    for value in graph.outputs:
        if value.shape is not None:
            states[state_name(str(value.name))] = value.shape


def name_as_optimum(graph: ir.Graph) -> None:
    """``past_key_values.0.key`` and ``present.0.key`` for the caches, in place.

    Raises:
        UsageError: the cache is none of keys and values.
    """
    for values, kind in ((graph.inputs, "past_key_values"), (graph.outputs, "present")):
        for value in values:
            name = str(value.name)
            leaf = _LEAF.fullmatch(name)
            if leaf is not None and "_attention_cache" not in name:
                value.name = f"{kind}.{leaf[2]}.{leaf[3]}"
            elif is_state(name):
                raise UsageError(
                    "This model's cache has no names that optimum knows.",
                    found=f"{name}, which is no layer's keys or values",
                    fix="omit --names",
                )


def _call(names: dict[str, str], dim: int | ir.SymbolicDim, name: str) -> None:
    if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
        names.setdefault(dim.value, name)


def _text(names: dict[str, str], dim: int | ir.SymbolicDim) -> str | int | None:
    if isinstance(dim, int):
        return dim
    return names.get(dim.value or "", dim.value)


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

"""Names of the inputs, outputs and dimensions of a decoder's graph, as its users know them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.order import all_graphs

_SYMBOL = re.compile(r"\b[A-Za-z_]\w*\b")
_LEAF = re.compile(r"(?:input\.|output\.)?past_key_values\.layers\.(\d+)\.(key|value)s")


def is_state(name: str) -> bool:
    """Whether an input or output is a part of the cache."""
    return state_name(name).startswith(("past_key_values.", "cache_params."))


def state_name(name: str) -> str:
    """What an input and the output that follows it have in common: the path of the cache's leaf."""
    return re.sub(r"^(input|output)\.", "", name)


def name_dimensions(model: ir.Model, static_cache: int | None = None) -> None:
    """``batch``, ``sequence`` and ``past`` for the symbols that tracing invented, in place.

    A mask over cache and tokens has the dimension ``past + sequence``.

    Args:
        static_cache: the size of the caches, which stands for ``past`` then.
    """
    graph = model.graph
    names: dict[str, str] = {}
    tokens = next(
        (v for v in graph.inputs if v.name in ("input_ids", "inputs_embeds", "decoder_input_ids")),
        None,
    )
    sequence: int | str = "sequence"
    if tokens is not None and tokens.shape is not None:
        _call(names, tokens.shape[0], "batch")
        _call(names, tokens.shape[1], "sequence")
        sequence = tokens.shape[1] if isinstance(tokens.shape[1], int) else "sequence"
    past: str | int | None = None
    for value in graph.inputs:
        if value.shape is None or not is_state(str(value.name)) or not value.shape:
            continue
        _call(names, value.shape[0], "batch")
        if _LEAF.fullmatch(str(value.name)) and len(value.shape) == 4:
            _call(names, value.shape[2], str(static_cache or "past"))
            past = past or _text(names, value.shape[2])
    total = f"{past} + {sequence}" if isinstance(past, str) else past or "sequence"
    for value in graph.inputs:
        if value.name == "attention_mask" and value.shape is not None and len(value.shape) == 2:
            _call(names, value.shape[0], "batch")
            _call(names, value.shape[1], str(total))
    for value in _values(model):
        if value.shape is not None and any(not isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([_renamed(names, dim) for dim in value.shape])


def name_as_optimum(graph: ir.Graph) -> None:
    """``past_key_values.0.key`` and ``present.0.key`` for the caches, in place.

    Raises:
        UsageError: the cache is none of keys and values.
    """
    for values, kind in ((graph.inputs, "past_key_values"), (graph.outputs, "present")):
        for value in values:
            name = str(value.name)
            leaf = _LEAF.fullmatch(name)
            if leaf is not None:
                value.name = f"{kind}.{leaf[1]}.{leaf[2]}"
            elif is_state(name):
                raise UsageError(
                    "This model's cache has no names that optimum knows.",
                    found=f"{name}, which is no layer's keys or values",
                    fix="leave --names away",
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

"""A cache in one buffer that is as long as a text may become: what attention of it has to know.

ONNX Runtime's GroupQueryAttention writes new tokens into the buffer that is its input and output.
How many tokens it holds is no size of the buffer then; the mask counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import onnx_ir as ir

from rmsnorm_export.decoder.attention import ATTENTION, VIEWS, cache_of
from rmsnorm_export.decoder.bundle import states_of
from rmsnorm_export.decoder.tokens import TOKENS
from rmsnorm_export.graph.order import replace
from rmsnorm_export.runtime.inputs import graph_inputs

_LENGTH = 2
_AXES: tuple[int, ...] = (0, 1, _LENGTH, 3)
"""Of a cache: rows, heads, tokens, elements of a head."""


def calls_of(graph: ir.Graph) -> tuple[dict[str, int], ...]:
    """Return the sizes of the calls with several rows of a graph that begins a text and goes on.

    They are for a prompt, and for a token after it; () where the graph does one of both alone.
    """
    shapes = {str(v.name): v.shape for v in graph.inputs if v.shape is not None}
    tokens = {str(shapes[n][1]) for n in TOKENS if n in shapes and not _fixed(shapes[n], 1)}
    caches = [shapes[name] for name in states_of(graph) if len(shapes.get(name, ())) == 4]
    lengths = {str(shape[_LENGTH]) for shape in caches if not _fixed(shape, _LENGTH)}
    if len(tokens) != 1 or len(lengths) != 1:
        return ()
    return {lengths.pop(): 0}, {tokens.pop(): 1}


def _fixed(shape: ir.Shape, axis: int) -> bool:
    return isinstance(shape[axis], int)


def as_one_row(step: Callable[[ir.Model], object]) -> Callable[[ir.Model], object]:
    """Return a fusion that takes the queries of attention for those of one row.

    transformers asks for one row where several tokens follow a cache: the node refuses several.
    Consumers give them a prompt, and one token after another.
    """

    def run(model: ir.Model) -> None:
        nodes = (n for n in model.graph.all_nodes() if n.op_type == "MultiHeadAttention")
        queries = {node.inputs[0] for node in nodes}
        shapes = {query: query.shape for query in queries if query is not None and query.shape}
        for query, shape in shapes.items():
            query.shape = ir.Shape([1, *shape[1:]])
        step(model)
        for query, shape in shapes.items():
            query.shape = shape

    return run


def count_by_mask(model: ir.Model) -> None:
    """Read the tokens of the cache off the mask; in place, where attention alone takes the cache.

    The mask covers cache and tokens, so that its length less theirs is the length of the cache.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    lengths = [node for node in _readers(model.graph) if _axes_read(node) == (_LENGTH,)]
    if not in_one_buffer(model.graph, others=lengths):
        return
    for node in lengths:
        tape = ir.tape.Tape()
        covered, new = (
            tape.op("Shape", [inputs[name]], {"start": 1, "end": 2})
            for name in ("attention_mask", "input_ids")
        )
        held = tape.op("Sub", [covered, new])
        replace(node, tape.nodes, [held])
    model.graph.sort()


def in_one_buffer(graph: ir.Graph, others: Collection[ir.Node] = ()) -> bool:
    """Return whether attention alone takes the tokens of the cache, and nothing what it returns.

    Args:
        graph: of a decoder.
        others: nodes that may take them, too.
    """
    takers = {
        node.op_type
        for node in _readers(graph)
        if node not in others and (node.op_type != "Shape" or _LENGTH in _axes_read(node))
    }
    states = states_of(graph)
    is_read = any(v.uses() for v in graph.outputs if v.name in states.values())
    return not is_read and takers == {ATTENTION}


def open_caches(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs of a cache that leave its heads open, as optimum's empty one asks for."""
    states = states_of(graph)
    caches = [v for v in graph.inputs if v.name in states and len(v.shape or ()) == len(_AXES)]
    return [value for value in caches if value.shape is not None and not _fixed(value.shape, 1)]


def know_sizes(model: ir.Model) -> None:
    """Give caches that leave sizes open those to which the graph fixes them, in place."""
    declared = graph_inputs(model)
    for value in open_caches(model.graph):
        value.shape = ir.Shape(declared[str(value.name)].shape or ())


def read_in_its_sizes(model: ir.Model, names: Collection[str]) -> None:
    """Let attention nodes, which check sizes, read caches in those that are known, in place."""
    for cache in model.graph.inputs:
        if cache.name not in names or cache.shape is None or not _fixed(cache.shape, 1):
            continue
        own: Any = [0, cache.shape[1], 0, cache.shape[3]]  # 0: as it is
        for node, index in cache.uses():
            if node.op_type == ATTENTION:
                tape = ir.tape.Tape()
                sizes = tape.op("Constant", [], {"value_ints": own})
                node.replace_input_with(index, tape.op("Reshape", [cache, sizes]))
                model.graph.insert_before(node, tape.nodes)


def show_states(model: ir.Model) -> None:
    """Make keys and values that are written into a cache outputs of a prompt's graph, in place.

    transformers' fusions take the attention of a prompt for one that begins a cache where these are
    outputs; `hide_states` has to follow.
    """
    for attention in [n for n in model.graph if n.op_type == "MultiHeadAttention"]:
        states = [_written(value) for value in attention.inputs[1:3]]
        model.graph.outputs.extend(state for state in states if state is not None)


def hide_states(model: ir.Model, count: int) -> None:
    """Take the outputs after the first ``count`` away, in place."""
    del model.graph.outputs[count:]


def _written(value: ir.Value | None) -> ir.Value | None:
    """Return [batch, heads, tokens, width] of which a value is a view, if it goes into a cache."""
    state, is_written = None, False
    while value is not None and not value.is_graph_output():
        if value.shape is not None and len(value.shape) == 4 and _fixed(value.shape, 1):
            state = value
        is_written = is_written or cache_of(value) is not None
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in VIEWS else None
    return state if is_written else None


def _readers(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that take a cache."""
    states = states_of(graph)
    return [use.node for value in graph.inputs if value.name in states for use in value.uses()]


def _axes_read(node: ir.Node) -> tuple[int, ...]:
    """Return the axes of a cache whose sizes a Shape node reads; () of another node."""
    if node.op_type != "Shape":
        return ()
    end = node.attributes.get("end")
    ends = slice(node.attributes.get_int("start", 0), None if end is None else end.as_int())
    return _AXES[ends]

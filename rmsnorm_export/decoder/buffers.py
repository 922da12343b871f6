"""A cache in one buffer that is as long as a text may become: what attention of it has to know.

ONNX Runtime's GroupQueryAttention writes new tokens into the buffer that is its input and output.
How many tokens it holds is no size of the buffer then; the mask counts them.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rmsnorm_export.decoder.bundle import states_of

ATTENTION = "GroupQueryAttention"
CALLS = ({"past": 0}, {"sequence": 1})
"""The calls of such a graph with several rows: for a prompt, and for a token after it."""


def as_one_row(step: Callable[[ir.Model], object]) -> Callable[[ir.Model], object]:
    """Return a fusion that takes the queries of attention for those of one row.

    transformers asks for one row where several tokens follow a cache; that they never do so in
    several rows is known of the consumer, not of the graph.
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
    sizes = [
        use.node
        for name in states_of(model.graph)
        for use in inputs[name].uses()
        if use.node.op_type == "Shape"
    ]
    if not in_one_buffer(model.graph, ("Shape",)):
        return
    for node in sizes:
        tape = ir.tape.Tape()
        covered, new = (
            tape.op("Shape", [inputs[name]], {"start": 1, "end": 2})
            for name in ("attention_mask", "input_ids")
        )
        held = tape.op("Sub", [covered, new])
        ir.convenience.replace_nodes_and_values(
            model.graph, node, [node], tape.nodes, node.outputs, [held]
        )
    model.graph.sort()


def in_one_buffer(graph: ir.Graph, others: tuple[str, ...] = ()) -> bool:
    """Return whether attention alone takes the cache, and nothing reads what it makes of it.

    Args:
        graph: of a decoder.
        others: operators that may take it, too.
    """
    states = states_of(graph)
    users = {u.node.op_type for v in graph.inputs if v.name in states for u in v.uses()}
    is_read = any(v.uses() for v in graph.outputs if v.name in states.values())
    return not is_read and ATTENTION in users <= {ATTENTION, *others}

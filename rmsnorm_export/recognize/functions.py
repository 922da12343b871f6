"""The functions of a model: in which order they call each other, and what they come to."""

from __future__ import annotations

import onnx_ir as ir

MOST_INLINED = 1 << 20
"""The end of counting: functions that call functions double with every few bytes of a file."""


def callees_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Functions so that each comes after every function that it calls, else as they stand."""
    functions = model.functions
    calls: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]] = {}
    for key, function in functions.items():
        keys = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
        calls[key] = [callee for callee in keys if callee in functions]
    order: list[ir.OperatorIdentifier] = []
    opened: set[ir.OperatorIdentifier] = set()
    for start in functions:
        stack = [] if start in opened else [(start, iter(calls[start]))]
        opened.add(start)
        while stack:
            key, rest = stack[-1]
            callee = next(rest, None)
            if callee is None:
                order.append(key)
                stack.pop()
            elif callee not in opened:
                opened.add(callee)
                stack.append((callee, iter(calls[callee])))
    return order


def reached(
    model: ir.Model, known: frozenset[ir.OperatorIdentifier]
) -> frozenset[ir.OperatorIdentifier]:
    """Functions that are called from the graph; nodes of ``known`` operators call none."""
    found: set[ir.OperatorIdentifier] = set()
    holders: list[ir.Graph | ir.Function] = [model.graph]
    while holders:
        nodes = holders.pop().all_nodes()
        keys = {node.op_identifier() for node in nodes} & model.functions.keys() - found - known
        found |= keys
        holders += [model.functions[key] for key in keys]
    return frozenset(found)


def inlined_size(model: ir.Model) -> int:
    """Nodes of the model if every call were replaced by its body; ``MOST_INLINED``: at least."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key in callees_first(model):
        nodes = model.functions[key].all_nodes()
        size = sum(sizes.get(node.op_identifier(), 1) for node in nodes)
        sizes[key] = min(size, MOST_INLINED)
    total = sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())
    return min(total, MOST_INLINED)

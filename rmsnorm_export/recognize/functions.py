"""The functions of a model: in which order they call each other, and what they come to."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.op.spec import DOMAIN

MOST_INLINED = 1 << 20
"""The end of counting: functions that call functions double with every few bytes of a file."""


def is_own(function: ir.Function) -> bool:
    """Return whether this package wrote a function: its values are named after the domain."""
    names = ((value.name or "") for value in function.inputs)
    return function.domain == DOMAIN and all(name.startswith(f"{DOMAIN}.") for name in names)


def callees_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Functions so that each comes after every function that it calls, else as they stand."""
    functions = model.functions
    calls: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]] = {}
    for key, function in functions.items():
        keys = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
        calls[key] = [callee for callee in keys if callee in functions]
    order: dict[ir.OperatorIdentifier, None] = {}
    opened: set[ir.OperatorIdentifier] = set()
    stack = list(reversed(functions))
    while stack:
        if (key := stack.pop()) in opened:
            order.setdefault(key)  # what it calls is there
        else:
            opened.add(key)
            stack += [key, *(callee for callee in reversed(calls[key]) if callee not in opened)]
    return list(order)


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

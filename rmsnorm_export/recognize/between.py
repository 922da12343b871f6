"""The nodes between values of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from rmsnorm_export.recognize.bodies import inputs_of


def nodes_between(
    ends: Iterable[ir.Value], start: Collection[ir.Value | None], most: int = 1 << 20
) -> list[ir.Node]:
    """Return the nodes that compute ``ends`` from the values of ``start``, in topological order.

    ``most``: none are returned where there are more.
    """
    order: list[ir.Node] = []
    seen: set[ir.Node] = set()
    stack: list[tuple[ir.Value | None, bool]] = [(value, False) for value in ends]
    while stack and len(seen) <= most:
        value, done = stack.pop()
        node = None if value is None or value in start else value.producer()
        if node is None:
            continue
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((value, True))
            stack.extend((v, False) for v in reversed(inputs_of(node)))
    return order if len(seen) <= most else []

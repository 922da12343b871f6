"""Values that two graphs have in common, by name.

A rewrite keeps the name of the last value of what it replaces, so that a name is the same quantity
before and after. In two exports a name may be an accident: the operator and the module of a value
have to agree too, but for norms, which rewrites turn into one node.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_export.compare.flow import Flow


def by_name(a: Flow, b: Flow) -> set[str]:
    """Names of computed tensors that are the same quantity in both graphs."""
    return {
        name
        for name in a.order.keys() & b.order.keys()
        if _tensor(a.value(name)) and _tensor(b.value(name)) and _same(name, a, b)
    }


def _tensor(value: ir.Value | None) -> bool:
    return value is not None and (value.type is None or isinstance(value.type, ir.TensorType))


def _same(name: str, a: Flow, b: Flow) -> bool:
    first, second = a.node(name), b.node(name)
    assert first is not None
    assert second is not None
    norms = [norm for norm in (a.norm(name), b.norm(name)) if norm is not None]
    if len(norms) == 2:
        # A fused node may carry the scopes of the Add that became a part of it; its name is right.
        modules = [norm.module for norm in norms]
        nodes = (first.name or "", second.name or "")
        return _agree(modules) or any(
            module and node.startswith(f"{module}/") for module in modules for node in nodes
        )
    if not _agree([a.module(name), b.module(name)]):
        return False
    return bool(norms) or _kind(first, name) == _kind(second, name)


def _agree(modules: Iterable[str | None]) -> bool:
    """As far as they are known."""
    return len(set(modules) - {None}) < 2


def _kind(node: ir.Node, name: str) -> tuple[str, str, int]:
    place = next(i for i, value in enumerate(node.outputs) if value.name == name)
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, place)

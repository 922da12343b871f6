"""Functions and branches that hold a part of a norm, put in the place of their call.

Exporters write an ATen operator or a Python function as a function of the model: a square here, a
mean there, epsilon handed over. A function that holds a whole norm stays. The branches of an If are
a part where both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import onnx_ir as ir

from rmsnorm_export.graph.functions import inline, may_inline
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.op.native import DEFAULT_DOMAINS
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.context import same_attributes, same_tensors
from rmsnorm_export.recognize.scan import KNOWN, Recognition
from rmsnorm_export.rewrite.names import Names

_MOST_ROUNDS = 4
_SMALL = 32
"""Nodes of a function that goes with those that hold a part, if it could be the next part."""


def inline_parts(
    model: ir.Model, first: Recognition, recognize: Callable[[ir.Model], Recognition]
) -> tuple[ir.Model, Recognition]:
    """Return a copy without the functions that hold parts of norms, if that finds norms.

    Args:
        model: not changed.
        first: what ``recognize`` says of it.
    """
    best, of_best = model, first
    trial, of_trial = model, first
    for _ in range(_MOST_ROUNDS):
        if not of_trial.crossed or not may_inline(trial):
            break
        inlined = _without(trial, of_trial.crossed | _small_functions(trial))
        if inlined is None:
            break
        trial, of_trial = inlined, recognize(inlined)
        if len(of_trial.matches) > len(of_best.matches):
            best, of_best = trial, of_trial
    unbranched = _without_equal_branches(best) if of_best.refusals else None
    if unbranched is not None:
        of_trial = recognize(unbranched)
        # A norm in both branches was two.
        if len(of_trial.refusals) < len(of_best.refusals):
            best, of_best = unbranched, of_trial
    return best, of_best


def _small_functions(model: ir.Model) -> Set[ir.OperatorIdentifier]:
    """Functions of a few operators that a norm is made of: where a chain goes on."""
    return {
        key
        for key, function in model.functions.items()
        if key[0] != DOMAIN
        and len(function) <= _SMALL
        and all(
            node.domain in DEFAULT_DOMAINS and node.op_type in (*KNOWN, "Constant")
            for node in function
        )
    }


def _without(model: ir.Model, functions: Set[ir.OperatorIdentifier]) -> ir.Model | None:
    """A copy with the bodies of these functions in their callers; None where that cannot be."""
    try:
        return inline(model.clone(), lambda function: function.identifier() in functions)
    except ValueError:
        return None


def _without_equal_branches(model: ir.Model) -> ir.Model | None:
    """A copy without an If whose branches are the same, their nodes in its place; None: no such."""
    if not any(_decides_nothing(node) for graph in all_graphs(model) for node in graph):
        return None
    copy = model.clone()
    names = Names(copy)
    for graph in all_graphs(copy):
        for node in list(graph):
            if _decides_nothing(node):
                _put_in_place(graph, node, names)
    return copy


def _decides_nothing(node: ir.Node) -> bool:
    """An If of two branches that are the same, node by node."""
    if standard(node) != "If":
        return False
    one, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    stored, twins = (tuple(graph.initializers.values()) for graph in (one, other))
    if len(one) != len(other) or len(stored) != len(twins):
        return False
    if not all(
        same_tensors(a.const_value, b.const_value) for a, b in zip(stored, twins, strict=True)
    ):
        return False
    same: dict[ir.Value | None, ir.Value | None] = dict(zip(twins, stored, strict=True))
    for a, b in zip(one, other, strict=True):
        alike = a.op_identifier() == b.op_identifier() and same_attributes(a, b)
        if not alike or len(a.outputs) != len(b.outputs):
            return False
        if a.inputs != tuple(same.get(value, value) for value in b.inputs):
            return False
        same.update(zip(b.outputs, a.outputs, strict=True))
    return list(one.outputs) == [same.get(value, value) for value in other.outputs]


def _put_in_place(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    """The nodes of the first branch in the place of an If."""
    branch = node.attributes["then_branch"].as_graph()
    results = list(branch.outputs)
    branch.outputs.clear()
    inner = list(branch)
    branch.remove(inner)
    for stored in branch.initializers.values():
        if stored.const_value is None:  # not the same as any other
            continue
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", stored.const_value)])
        ir.convenience.replace_all_uses_with(stored, constant.outputs[0])
        results = [constant.outputs[0] if value is stored else value for value in results]
        inner.insert(0, constant)
    for value in (value for made in inner for value in made.outputs):
        value.name = names(value.name or "branch")
    ends = [ir.Node("", "Identity", [value]) for value in results]
    outputs = [end.outputs[0] for end in ends]
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], [*inner, *ends], node.outputs, outputs
    )

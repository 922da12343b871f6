"""The norms, residual sums and products of a model, each with what is known before it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import onnx_ir as ir

from rmsnorm_export.audit.operators import CENTRED, SUMS
from rmsnorm_export.graph.order import graphs_in, subgraphs
from rmsnorm_export.health.half import FileNames, node_name
from rmsnorm_export.health.limits import Limits
from rmsnorm_export.health.parts import Part, part_of, row_of
from rmsnorm_export.health.result import END, Health
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import FLOAT16
from rmsnorm_export.proof.feeds import limits
from rmsnorm_export.recognize.bodies import bodies_of
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.match import Match, module_path
from rmsnorm_export.recognize.scan import recognize

_NORM_OPERATORS = (*CENTRED, "LpNormalization")
PRODUCTS = (
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Attention",
    "FusedMatMul", "MatMulNBits", "MultiHeadAttention", "GroupQueryAttention",
)  # fmt: skip
"""Operators that multiply matrices."""
_REDUCTIONS = (*PRODUCTS, "Softmax", "LogSoftmax", *SUMS)
"""Operators that add up products, squares or elements."""


@dataclasses.dataclass(slots=True, eq=False)
class Site:
    """A norm, sum or product: what is said of it, the value that is measured, and its nodes."""

    health: Health
    row: ir.Value
    nodes: tuple[ir.Node, ...]


class Sites:
    """The norms of a model, each after the residual sum that it reads, and its other reductions.

    Args:
        model, converted: of ``in_half``.
        names: of the model.
        target: for which a cure has to do.

    Attributes:
        graph, types: of the model.
        stored: values that are made of constants alone.
        sites: in order.
    """

    def __init__(
        self, model: ir.Model, names: FileNames, target: Target, *, converted: bool
    ) -> None:
        recognition = recognize(model)
        self.graph, self.types, self._converted = model.graph, recognition.types, converted
        self._scopes = dict(_scopes(self.graph, "main"))
        self.stored = _constants_in(self.graph)
        self.sites: list[Site] = []
        self._sums: set[ir.Value] = set()
        nodes = tuple(nodes_in(self.graph))
        inside = {node for match in recognition.matches for node in match.nodes}
        others = (part_of(node, self.types, self.stored) for node in nodes if node not in inside)
        every: list[Match | Part] = [*filter(None, others), *recognition.matches]
        norms = {part.nodes[-1]: part for part in every}
        inside.update(node for part in norms.values() for node in part.nodes)
        refused = {c.node: r for c, r in recognition.told.items() if r.kind == "norm"}
        norm_limits = Limits(self.types, model.opset_imports, names, target)
        for node in nodes:
            if node in norms:
                self._add_norm(norms[node], norm_limits)
            elif node in refused and node not in inside:
                row = row_of(node.inputs[0] or node.outputs[0], self.stored)
                self._add(node, "norm", row, problem=refused[node].message)
            elif node not in inside and node.op_type in (*_NORM_OPERATORS, *_REDUCTIONS):
                self._add_reduction(node)

    def _add_norm(self, part: Match | Part, norm_limits: Limits) -> None:
        match = part if isinstance(part, Match) else None
        row = part.x if match is None or match.sum is None else match.sum
        module = None if match is None else match.module
        norm = self._health(part.nodes[-1], "norm", part.dtype, module)
        self._add_sum(row, norm, part.nodes)
        self.sites.append(Site(norm_limits.of(part, norm), row, part.nodes))

    def _add(self, node: ir.Node, kind: str, row: ir.Value, **facts: Any) -> Site:
        dtype = int(self.types.dtype(row) or FLOAT16)
        health = dataclasses.replace(self._health(node, kind, dtype), **facts)
        self.sites.append(Site(health, row, (node,)))
        return self.sites[-1]

    def _add_sum(self, row: ir.Value, norm: Health, nodes: Collection[ir.Node] = ()) -> None:
        """Add the residual sum that a norm of these nodes reads, or computes, if its row is one."""
        add = row.producer()
        if add is None or not (add in nodes or self._adds_values(add)) or row in self._sums:
            return
        added = dataclasses.replace(
            norm, site=node_name(add), kind="residual sum", module=module_path(add) or norm.module,
            largest=limits(int(self.types.dtype(row) or FLOAT16))[0] / 2,
        )  # fmt: skip
        self._sums.add(row)
        self.sites.append(Site(added, row, (add,)))

    def _add_reduction(self, node: ir.Node) -> None:
        """Add a node that sums up, and the residual sum that it normalises."""
        value = node.outputs[0]
        if self.types.dtype(value) == FLOAT16 and value not in self.stored:
            if node.op_type in _NORM_OPERATORS and node.inputs[0] is not None:
                self._add_sum(node.inputs[0], self._health(node, "", FLOAT16))
            self.add_value(value, node)

    def add_value(self, value: ir.Value, node: ir.Node) -> Site:
        """Add a value of which nothing but the range is known."""
        return self._add(node, node.op_type, value, largest=END)

    def _health(self, node: ir.Node, kind: str, dtype: int, module: str | None = None) -> Health:
        scope = "main" if node.graph is None else self._scopes[node.graph]
        changed = self._converted and dtype == FLOAT16
        module = module or module_path(node)
        return Health(node_name(node), kind, module, scope, type_name(dtype), changed)

    def _adds_values(self, node: ir.Node) -> bool:
        """Return whether a node is a sum of two values of one shape that are both computed."""
        if standard(node) != "Add" or not self.stored.isdisjoint(node.inputs):
            return False
        shapes = (self.types.shape(value) for value in node.inputs if value is not None)
        known = [dims for dims in shapes if dims is not None]
        sizes = (
            {one for one in axis if isinstance(one, int)} for axis in zip(*known, strict=False)
        )
        return len({*map(len, known)}) < 2 and all(len(one) < 2 for one in sizes)


def nodes_in(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph in order, those of bodies before the node that holds them."""
    for node in graph:
        for body in subgraphs(node):
            yield from nodes_in(body)
        yield node


def _scopes(graph: ir.Graph, scope: str) -> Iterator[tuple[ir.Graph | ir.Function, str]]:
    """Yield a graph and its bodies with what recognition calls them."""
    yield graph, scope
    for node in graph:
        for label, body in bodies_of(node):
            yield from _scopes(body, f"{scope}/{node.name or node.op_type}.{label}")


def _constants_in(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that are made of constants alone."""
    stored = (value for one in graphs_in(graph) for value in one.initializers.values())
    constant = {value for value in stored if not value.is_graph_input()}
    for node in nodes_in(graph):
        fixed = not node.op_type.startswith("Random") and not any(subgraphs(node))
        if fixed and constant.issuperset(filter(None, node.inputs)):
            constant.update(node.outputs)
    return constant

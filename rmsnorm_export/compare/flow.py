"""Which values of a graph are computed from which, and where its norms are."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.recognize.match import Match, module_path
from rmsnorm_export.recognize.scan import recognize

SKIP = ("SkipRMSNorm", "SkipSimplifiedLayerNormalization")
"""Norms whose last output is the sum of their first two inputs."""

_MOVES = frozenset(
    {"Cast", "Constant", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
_KEEPS = _MOVES - {"Cast"} | {
    *("Concat", "Gather", "GatherElements", "GatherND", "Pad", "ScatterND", "Slice", "Split"),
    *("Tile", "TopK", "Where"),
}
_COARSE = ("", "float16", "bfloat16")
_HALF = {ir.DataType.FLOAT16: 1, ir.DataType.BFLOAT16: 2}
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_SHOWN = 3
"""Names in a note."""


class Flow:
    """The main graph of a model, by the names of its values.

    What is inside a subgraph or a function is not entered: a node reads what its subgraphs capture.

    Attributes:
        model: that holds it.
        order: name of each computed value -> its place.
    """

    def __init__(self, model: ir.Model) -> None:
        with no_gc():
            found = recognize(model)
        self.model = model
        self._producer: dict[str, ir.Node] = {}
        self._reads: dict[ir.Node, tuple[str, ...]] = {}
        for node in model.graph:
            for value in node.outputs:
                if value.name:
                    self._producer[value.name] = node
            self._reads[node] = tuple(
                dict.fromkeys(value.name for value in _values_read(node, model.graph) if value.name)
            )
        self.order = {name: place for place, name in enumerate(self._producer)}
        self._norms: dict[str, Match] = {}
        self._inside: dict[ir.Node, Match] = {}
        for match in found.matches:
            if match.scope == "main":
                for result in (match.output, match.sum):
                    if result is not None and result.name:
                        self._norms[result.name] = match
                for node in _nodes_of(match):
                    self._inside[node] = match
        self._types = found.types
        self._through = self._coarsest()

    def node(self, name: str) -> ir.Node | None:
        """What computes a value; None for an input or a weight."""
        return self._producer.get(name)

    def value(self, name: str) -> ir.Value | None:
        """The computed value of this name."""
        node = self._producer.get(name)
        return None if node is None else next(v for v in node.outputs if v.name == name)

    def dtype(self, name: str) -> int | None:
        """ONNX element type of a value; None when nothing tells."""
        value = self.value(name)
        dtype = None if value is None else self._types.dtype(value)
        return None if dtype is None else dtype.value

    def module(self, name: str) -> str | None:
        """Path of the PyTorch module that a value came from, where the exporter wrote it down."""
        node = self._producer.get(name)
        return None if node is None else module_path(node)

    def norm(self, name: str) -> Match | None:
        """The norm whose result, or whose residual sum, a value is."""
        return self._norms.get(name)

    def norm_in(self, nodes: Iterable[ir.Node]) -> Match | None:
        """The first norm that has one of these nodes."""
        return next((self._inside[node] for node in nodes if node in self._inside), None)

    def through(self, name: str) -> str:
        """The coarsest type in which a value, or one that it is computed from, was computed.

        ``float16``, ``bfloat16``, or "" for neither. Moving numbers about is no computation.
        """
        return self._through.get(name, "")

    def _coarsest(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in self.model.graph:
            rank = max(
                (_COARSE.index(found.get(name, "")) for name in self._reads[node]), default=0
            )
            for value in node.outputs:
                own = 0
                if value.name and node.op_type not in _KEEPS:
                    dtype = self._types.dtype(value)
                    own = _HALF.get(dtype, 0) if dtype is not None else 0
                if value.name and max(rank, own):
                    found[value.name] = _COARSE[max(rank, own)]
        return found

    def others(self, name: str, stops: Collection[str]) -> int:
        """How many nodes besides its norm compute a value from the nearest of ``stops``.

        Not counted are those that only move numbers, and norms that hand on a residual sum: what
        such a norm computes itself depends on the sum, too.
        """
        match = self.norm(name)
        own = set() if match is None else set(_nodes_of(match))
        producer = self.node(name)
        return sum(
            node not in own
            and node is not producer
            and node.op_type not in _MOVES
            and node.op_type not in SKIP
            for node in self.nearest(name, stops)[1]
        )

    def ancestors(self, name: str) -> set[str]:
        """Every computed value that a value is computed from, itself not among them."""
        found, _ = self._back(name, ())
        return found

    def nearest(self, name: str, stops: Collection[str]) -> tuple[set[str], list[ir.Node]]:
        """The first of ``stops`` on every way back from a value, and the nodes in between."""
        found, nodes = self._back(name, stops)
        return {one for one in found if one in stops}, nodes

    def _back(self, name: str, stops: Collection[str]) -> tuple[set[str], list[ir.Node]]:
        seen: set[str] = set()
        nodes: dict[ir.Node, None] = {}
        pending = [name]
        while pending:
            node = self._producer.get(pending.pop())
            if node is None or node in nodes:
                continue
            nodes[node] = None
            for read in self._reads[node]:
                if read in self._producer and read not in seen:
                    seen.add(read)
                    if read not in stops:
                        pending.append(read)
        return seen - {name}, sorted(nodes, key=self._place)

    def _place(self, node: ir.Node) -> int:
        return min(self.order[value.name] for value in node.outputs if value.name)

    def not_entered(self, nodes: Iterable[ir.Node]) -> list[str]:
        """What of these nodes has an inside that was not looked into."""
        graphs: list[str] = []
        functions: dict[str, None] = {}
        for node in nodes:
            if any(attribute.type in _GRAPHS for attribute in _own_attributes(node)):
                graphs.append(f"{quoted(node.name or 'without a name')} ({short(node.op_type)})")
            elif node.op_identifier() in self.model.functions:
                functions[short(f"{node.domain}::{node.op_type}")] = None
        notes = []
        if graphs:
            notes.append(f"subgraphs were not entered: those of {_first_names(graphs)}")
        if functions:
            notes.append(f"functions of the file were not entered: {_first_names(list(functions))}")
        return notes


def _first_names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _nodes_of(match: Match) -> tuple[ir.Node, ...]:
    producer = match.output.producer()
    return match.nodes or (() if producer is None else (producer,))


def _own_attributes(node: ir.Node) -> list[ir.Attr]:
    return [attribute for attribute in node.attributes.values() if not attribute.is_ref()]


def _values_read(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """The values that a node reads, those that its subgraphs capture included."""
    values = [value for value in node.inputs if value is not None]
    for attribute in _own_attributes(node):
        graphs: list[ir.Graph] = []
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = [attribute.as_graph()]
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = list(attribute.as_graphs())
        for inner in graphs:
            for deep in ir.traversal.RecursiveGraphIterator(inner):
                values += [v for v in deep.inputs if v is not None and _owner(v) is graph]
            values += [v for v in inner.outputs if _owner(v) is graph]
    return values


def _owner(value: ir.Value) -> ir.Graph | None:
    producer = value.producer()
    owner = None if producer is None else producer.graph
    return owner if isinstance(owner, ir.Graph) else None


def shared_values(a: Flow, b: Flow) -> frozenset[str]:
    """Names of computed tensors that are the same quantity in both graphs.

    A rewrite keeps the name of the last value of what it replaces, so that a name is the same
    quantity before and after. In two exports a name may be an accident: the operator and the module
    of a value have to agree too, but for norms, which rewrites turn into one node.
    """
    return frozenset(
        name
        for name in a.order.keys() & b.order.keys()
        if _is_tensor(a.value(name)) and _is_tensor(b.value(name)) and _same_quantity(name, a, b)
    )


def _is_tensor(value: ir.Value | None) -> bool:
    return value is not None and (value.type is None or isinstance(value.type, ir.TensorType))


def _same_quantity(name: str, a: Flow, b: Flow) -> bool:
    first, second = a.node(name), b.node(name)
    assert first is not None
    assert second is not None
    norms = [norm for norm in (a.norm(name), b.norm(name)) if norm is not None]
    if len(norms) == 2:
        # A fused node may carry the scopes of the Add that became a part of it; its name is right.
        modules = [norm.module for norm in norms]
        nodes = (first.name or "", second.name or "")
        return _modules_agree(modules) or any(
            module and node.startswith(f"{module}/") for module in modules for node in nodes
        )
    if not _modules_agree([a.module(name), b.module(name)]):
        return False
    return bool(norms) or _operator_of(first, name) == _operator_of(second, name)


def _modules_agree(modules: Iterable[str | None]) -> bool:
    """As far as they are known."""
    return len(set(modules) - {None}) < 2


def _operator_of(node: ir.Node, name: str) -> tuple[str, str, int]:
    place = next(i for i, value in enumerate(node.outputs) if value.name == name)
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, place)

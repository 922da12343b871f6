"""Which values of a graph are computed from which, where its norms are, what two graphs share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.order import all_nodes, label, subgraphs
from rmsnorm_export.printable import short
from rmsnorm_export.recognize.match import Match, module_path
from rmsnorm_export.recognize.scan import recognize

SKIP = ("SkipRMSNorm", "SkipSimplifiedLayerNormalization")
"""Norms whose last output is the sum of their first two inputs."""

HALF_TYPES = ("", "float16", "bfloat16")
"""None of them, then the finer and the coarser."""

_MOVES = frozenset(
    {"Cast", "Constant", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
_KEEPS = _MOVES - {"Cast"} | {
    *("Concat", "Gather", "GatherElements", "GatherND", "Pad", "ScatterND", "Slice", "Split"),
    *("Tile", "TopK", "Where"),
}
_SHAPED = frozenset({"Expand", "Reshape"})
_RANKS = {ir.DataType.FLOAT16: 1, ir.DataType.BFLOAT16: 2}
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
            recognition = recognize(model)
        self.model = model
        self._types = recognition.types
        self._values: dict[str, ir.Value] = {}
        self._reads: dict[ir.Node, tuple[str, ...]] = {}
        for node in model.graph:
            self._values |= {value.name: value for value in node.outputs if value.name}
            read = _values_read(node, model.graph)
            self._reads[node] = tuple(dict.fromkeys(value.name for value in read if value.name))
        self.order = {name: place for place, name in enumerate(self._values)}
        self._norms: dict[str, Match] = {}
        self._inside: dict[ir.Node, Match] = {}
        for match in recognition.matches:
            if match.scope == "main":
                results = (match.output, match.sum)
                self._norms |= {r.name: match for r in results if r is not None and r.name}
                self._inside |= dict.fromkeys(_nodes_of_norm(match), match)
        self._ranks = self._half_ranks()

    def node(self, name: str) -> ir.Node | None:
        """What computes a value; None for an input or a weight."""
        value = self._values.get(name)
        return None if value is None else value.producer()

    def value(self, name: str) -> ir.Value | None:
        """The computed value of this name."""
        return self._values.get(name)

    def dtype(self, name: str) -> int | None:
        """ONNX element type of a value; None when nothing tells."""
        value = self._values.get(name)
        dtype = None if value is None else self._types.dtype(value)
        return None if dtype is None else dtype.value

    def module(self, name: str) -> str | None:
        """Path of the PyTorch module that a value came from, where the exporter wrote it down."""
        node = self.node(name)
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
        return HALF_TYPES[self._ranks.get(name, 0)]

    def _half_ranks(self) -> dict[str, int]:
        """Place of the coarsest type among ``HALF_TYPES``, for the values where it is not 0."""
        ranks: dict[str, int] = {}
        for node in self.model.graph:
            before = max((ranks.get(name, 0) for name in self._reads[node]), default=0)
            for value in node.outputs:
                own = 0
                if value.name and node.op_type not in _KEEPS:
                    dtype = self._types.dtype(value)
                    own = 0 if dtype is None else _RANKS.get(dtype, 0)
                if value.name and max(before, own):
                    ranks[value.name] = max(before, own)
        return ranks

    def others(self, name: str, stops: Collection[str]) -> int:
        """How many nodes besides its norm compute a value from the nearest of ``stops``.

        Not counted are those that only move numbers, and norms that hand on a residual sum: what
        such a norm computes itself depends on the sum, too.
        """
        match = self.norm(name)
        own = {self.node(name), *(() if match is None else _nodes_of_norm(match))}
        return sum(
            node not in own and node.op_type not in _MOVES and node.op_type not in SKIP
            for node in self.nearest(name, stops)[1]
        )

    def ancestors(self, name: str) -> set[str]:
        """Every computed value that a value is computed from, itself not among them."""
        return self._back(name, ())[0]

    def nearest(self, name: str, stops: Collection[str]) -> tuple[set[str], list[ir.Node]]:
        """The first of ``stops`` on every way back from a value, and the nodes in between."""
        names, nodes = self._back(name, stops)
        return {one for one in names if one in stops}, nodes

    def _back(self, name: str, stops: Collection[str]) -> tuple[set[str], list[ir.Node]]:
        seen: set[str] = set()
        nodes: set[ir.Node] = set()
        pending = [name]
        while pending:
            node = self.node(pending.pop())
            if node is None or node in nodes:
                continue
            nodes.add(node)
            for read in self._reads[node]:
                if read in self._values and read not in seen:
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
            if any(subgraphs(node)):
                graphs.append(label(node))
            elif node.op_identifier() in self.model.functions:
                functions[short(f"{node.domain}::{node.op_type}")] = None
        notes = []
        if graphs:
            notes.append(f"subgraphs were not entered: those of {_first_names(graphs)}")
        if functions:
            notes.append(f"functions of the file were not entered: {_first_names([*functions])}")
        return notes


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _nodes_of_norm(match: Match) -> tuple[ir.Node, ...]:
    producer = match.output.producer()
    return match.nodes or (() if producer is None else (producer,))


def _values_read(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a node reads, those that its subgraphs capture included.

    A shape is not one: where it differs, so does that of the value, which is compared first.
    """
    read = node.inputs[:1] if node.op_type in _SHAPED else node.inputs
    yield from (value for value in read if value is not None)
    for inner in subgraphs(node):
        deep = [value for one in all_nodes(inner) for value in one.inputs if value is not None]
        for value in (*deep, *inner.outputs):
            producer = value.producer()
            if producer is not None and producer.graph is graph:
                yield value


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
    nodes = [node for node in (a.node(name), b.node(name)) if node is not None]
    norms = [norm for norm in (a.norm(name), b.norm(name)) if norm is not None]
    if len(norms) == 2:
        # A fused node may carry the scopes of the Add that became a part of it; its name is right.
        modules = [norm.module for norm in norms]
        return _modules_agree(modules) or any(
            module and (node.name or "").startswith(f"{module}/")
            for module in modules
            for node in nodes
        )
    if not _modules_agree([a.module(name), b.module(name)]):
        return False
    return bool(norms) or len({_operator_of(node, name) for node in nodes}) == 1


def _modules_agree(modules: Iterable[str | None]) -> bool:
    """As far as they are known."""
    return len(set(modules) - {None}) < 2


def _operator_of(node: ir.Node, name: str) -> tuple[str, str, int]:
    place = next(i for i, value in enumerate(node.outputs) if value.name == name)
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, place)

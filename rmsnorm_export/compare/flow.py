"""Which values of a graph are computed from which, where its norms are, what two graphs share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.order import graphs_in, subgraphs
from rmsnorm_export.recognize.match import Match, module_path
from rmsnorm_export.recognize.scan import recognize

HALF_TYPES = ("", "float16", "bfloat16")
"""None of them, then the finer and the coarser."""


class Flow:
    """The main graph of a model, by the names of its values.

    What is inside a subgraph or a function is not entered: a node reads what its subgraphs capture.

    Attributes:
        order: name of each computed value -> its place.
        values: by name, those that nodes compute.
        norms: by the names of their results and residual sums.
        half: the coarsest of ``HALF_TYPES`` in which a value is computed: float32 that comes from
            half types is no better than they are.
    """

    def __init__(self, model: ir.Model) -> None:
        with no_gc():
            recognition = recognize(model)
        self.values: dict[str, ir.Value] = {}
        self._reads: dict[ir.Node, tuple[str, ...]] = {}
        for node in model.graph:
            self.values |= {value.name: value for value in node.outputs if value.name}
            read = _values_read(node, model.graph)
            self._reads[node] = tuple(dict.fromkeys(value.name for value in read if value.name))
        self.order = {name: place for place, name in enumerate(self.values)}
        self.norms: dict[str, Match] = {}
        for match in recognition.matches:
            if match.scope == "main":
                results = [one for one in (match.output, match.sum) if one is not None]
                self.norms |= {one.name: match for one in results if one.name}
        types = map(recognition.types.dtype, self.values.values())
        names = {"", *(one.name.lower() for one in types if one is not None)}
        self.half = max(names.intersection(HALF_TYPES), key=HALF_TYPES.index)

    def node(self, name: str) -> ir.Node | None:
        """Return what computes a value; None for an input or a weight."""
        value = self.values.get(name)
        return None if value is None else value.producer()

    def ancestors(self, name: str, stops: Collection[str] = ()) -> set[str]:
        """Return every computed value that a value is computed from, itself not among them.

        Args:
            name: of the value.
            stops: on every way back the first of these is the last.
        """
        seen: set[str] = set()
        pending = [name]
        while pending:
            node = self.node(pending.pop())
            reads = () if node is None else self._reads[node]
            fresh = {read for read in reads if read in self.values} - seen
            seen |= fresh
            pending += fresh.difference(stops)
        return seen - {name}


def _values_read(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a node reads, those that its subgraphs capture included.

    A shape is not one: where it differs, so does that of the value, which is compared first.
    """
    read = node.inputs[:1] if node.op_type in ("Expand", "Reshape") else node.inputs
    yield from (value for value in read if value is not None)
    for inner in subgraphs(node):
        deep = [v for one in graphs_in(inner) for node in one for v in node.inputs if v is not None]
        for value in (*deep, *inner.outputs):
            producer = value.producer()
            if producer is not None and producer.graph is graph:
                yield value


def shared_values(a: Flow, b: Flow) -> frozenset[str]:
    """Return the names of computed tensors that are the same quantity in both graphs.

    A rewrite keeps the name of the last value of what it replaces, so that a name is the same
    quantity before and after. In two exports a name may be an accident: the operator and the module
    of a value have to agree too, but for norms, which rewrites turn into one node.
    """
    return frozenset(
        name
        for name in a.values.keys() & b.values.keys()
        if all(isinstance(flow.values[name].type, ir.TensorType | None) for flow in (a, b))
        and _same_quantity(name, a, b)
    )


def _same_quantity(name: str, a: Flow, b: Flow) -> bool:
    norms = [name in flow.norms for flow in (a, b)]
    if all(norms):  # a fused node may carry the scopes of the Add that became a part of it
        return True
    nodes = [node for node in (a.node(name), b.node(name)) if node is not None]
    if len(set(map(module_path, nodes)) - {None}) > 1:
        return False
    operators = {(node.domain.replace("ai.onnx", ""), node.op_type) for node in nodes}
    return any(norms) or len(operators) == 1

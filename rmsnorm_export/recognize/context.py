"""The state of one recognition: facts so far, matches so far, reasons so far."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.op.spec import FLOAT_TYPES
from rmsnorm_export.recognize.consts import MOVES, Constants, producer_of, standard
from rmsnorm_export.recognize.facts import Candidate, Fact, Norm, Radial, View
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import FORMERLY, Refusal, refuse
from rmsnorm_export.recognize.shape_rules import Info
from rmsnorm_export.recognize.types import Types

FLOATS = frozenset(map(ir.DataType, FLOAT_TYPES))

_PURE = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Split", "Concat", "Shape",
         "Cast", "QuantizeLinear", "DequantizeLinear")  # fmt: skip
"""Operators of which equal inputs give equal outputs, and that are no arithmetic of a norm."""

_UNDONE = frozenset((*MOVES, "Neg", "Cast", "CastLike", "Shape"))
"""Operators that a later node may take back."""

_MOST_BETWEEN = 16
"""Nodes between a value and the one that gives it back."""

_MOST_SOURCES = 64
"""Values that another one is computed from."""


def same_attributes(a: ir.Node, b: ir.Node) -> bool:
    """Certainly the same; graphs and tensors are not looked into."""
    return a.attributes.keys() == b.attributes.keys() and all(
        not x.is_ref() and not b.attributes[name].is_ref() and x.value == b.attributes[name].value
        for name, x in a.attributes.items()
    )


def widens(source: ir.DataType | None, to: ir.DataType | None) -> bool:
    """Every number of ``source`` is a number of ``to``."""
    if source in FLOATS and to in FLOATS and source is not None and to is not None:
        return source == to or source.bitwidth < to.bitwidth
    return source is not None and source == to


@dataclasses.dataclass(slots=True, eq=False)
class Context:
    """Facts, matches and candidates of one model, and the place where the pass is."""

    constants: Constants
    types: Types
    facts: dict[ir.Value, Fact] = dataclasses.field(default_factory=dict)
    readers: dict[ir.Value, tuple[ir.Node, ...]] = dataclasses.field(default_factory=dict)
    earlier: dict[ir.Value, ir.Value] = dataclasses.field(default_factory=dict)
    views: dict[ir.Value, View] = dataclasses.field(default_factory=dict)
    matches: dict[ir.Value, Match] = dataclasses.field(default_factory=dict)
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    last: dict[Candidate, ir.Value] = dataclasses.field(default_factory=dict)
    opaque: list[Refusal] = dataclasses.field(default_factory=list)
    owners: dict[ir.Graph, ir.Node] = dataclasses.field(default_factory=dict)
    calls: dict[ir.OperatorIdentifier, list[list[Info]]] = dataclasses.field(default_factory=dict)
    rows: dict[ir.Value, Radial] = dataclasses.field(default_factory=dict)
    crossed: set[ir.OperatorIdentifier] = dataclasses.field(default_factory=set)
    foreign: frozenset[ir.OperatorIdentifier] = frozenset()
    scope: str = "main"

    def view(self, value: ir.Value) -> View:
        """``value`` behind the nodes that keep its numbers; each of a chain is looked at once."""
        chain = [value]
        while chain[-1] not in self.views:
            source = self.earlier.get(chain[-1])
            if source is None:
                break
            chain.append(source)
        for link, source in zip(reversed(chain), (None, *reversed(chain[1:])), strict=False):
            if link not in self.views:
                behind = None if source is None else self.views[source]
                first, latest = ({}, {}) if behind is None else (behind.first, behind.latest)
                own = {self.types.dtype(link): link}
                root = link if behind is None else behind.root
                self.views[link] = View(root, link, {**own, **first}, {**latest, **own})
        return self.views[value]

    def maker(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """The node of one of these types behind ``value``, or behind the value of its element type
        whose numbers it holds."""
        if value is None:
            return None
        return producer_of(self.view(value).first[self.types.dtype(value)], *op_types)

    def may_be_same(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether ``same`` is worth asking: it asks for types."""
        made = {standard(a.producer()), standard(b.producer())}
        alike = len(made) == 1 and made.issubset(_PURE)
        return a is b or alike or a in self.earlier or b in self.earlier

    def same(self, a: ir.Value, b: ir.Value, depth: int = 4) -> bool:
        """Both values hold the same numbers: one root, or the same reshaping of one root."""
        a, b = self.view(a).root, self.view(b).root
        if a is b:
            return True
        left, right = a.producer(), b.producer()
        if left is None or right is None or depth == 0 or a.index() != b.index():
            return False
        if standard(left) != standard(right) or standard(left) not in _PURE:
            return False
        if len(left.inputs) != len(right.inputs) or not same_attributes(left, right):
            return False
        for x, y in zip(left.inputs, right.inputs, strict=True):
            if x is y:
                continue
            if x is None or y is None:
                return False
            if not self._equal(x, y) and not self.same(x, y, depth - 1):
                return False
        return True

    def _equal(self, x: ir.Value, y: ir.Value) -> bool:
        """Both are small constants of the same elements; integers in any shape."""
        ints = self.constants.ints(x)
        if ints is not None:
            return ints == self.constants.ints(y)
        one, other = self.constants.array(x), self.constants.array(y)
        if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return one.tobytes() == other.tobytes()

    def fact(self, value: ir.Value | None) -> Fact | None:
        return None if value is None else self.facts.get(value)

    def set_radial(self, value: ir.Value, radial: Radial) -> None:
        # What is a row again may be normalised itself; as a mean square it is seen by roots alone.
        where = self.rows if radial.spoiled and self._is_row(value, radial) else self.facts
        where[value] = radial
        self.last[radial.candidate] = value
        if radial.rooted:
            radial.candidate.rooted = True
            radial.candidate.root = radial.candidate.root or value.producer()

    def _is_row(self, value: ir.Value, radial: Radial) -> bool:
        """``radial`` with a tensor that is as wide as a row, or may be: no epsilon, no count."""
        node = producer_of(value, "Add", "Sum", "Sub", "Mul", "Div", "Max", "Min")
        for other in () if node is None else node.inputs:
            if node is None or other is None or isinstance(self.facts.get(other), Radial):
                continue
            dims = self.types.shape(other)
            if dims is None and (node.op_type == "Add" or self.same(other, radial.x.root)):
                return True
            if dims and radial.kept:
                dims = dims[radial.axis : len(dims) + radial.last + 1]
            if dims and set(dims) != {1}:
                return True
        return False

    def candidate(self, node: ir.Node) -> Candidate:
        candidate = Candidate(node, self.scope)
        self.candidates.append(candidate)
        return candidate

    def flaw(
        self, candidate: Candidate, node: ir.Node, reason: str, message: str, found: str, hint: str
    ) -> None:
        """Remember why a candidate may be no RMSNorm; without a norm the first is the refusal."""
        if candidate.flaw is None:
            candidate.flaw = refuse(node, reason, message, found, hint, self.scope)

    def spoil(
        self, node: ir.Node, radial: Radial, reason: str, message: str, found: str, hint: str
    ) -> None:
        """A flaw whose output is followed all the same, so that the refusal is reported if it is
        divided by in the end."""
        self.flaw(radial.candidate, node, reason, message, found, hint)
        self.set_radial(node.outputs[0], dataclasses.replace(radial, spoiled=True))

    def exclusive(self, value: ir.Value, node: ir.Node) -> bool:
        """``node``, in the same graph, is the only one that sees this value, or views of it."""
        producer = value.producer()
        if producer is None or producer.graph is not node.graph:
            return False
        between, stack = {node}, [value]
        while stack:
            seen = stack.pop()
            if seen.is_graph_output():
                return False
            for reader in self.read_by(seen):
                if reader in between:
                    continue
                views = standard(reader) in _UNDONE or reader.outputs[0] in self.earlier
                if not views or reader.graph is not node.graph or len(between) > _MOST_BETWEEN:
                    return False
                between.add(reader)
                stack.extend(reader.outputs)
        return True

    def of_one_source(self, a: ir.Value, b: ir.Value) -> bool:
        """Both are computed from the elements of one value, which may be one of them."""
        return not self._sources(a).isdisjoint(self._sources(b))

    def _sources(self, value: ir.Value) -> set[ir.Value]:
        """A value, and the nearest values that its elements are computed from; no constants."""
        sources, stack = {value}, [value]
        while stack and len(sources) <= _MOST_SOURCES:
            node = stack.pop().producer()
            if node is None or standard(node) in ("Shape", "Size"):
                continue
            inputs = node.inputs[:1] if standard(node) == "CastLike" else node.inputs
            before = {one for one in inputs if one is not None} - sources
            sources |= before
            stack.extend(before)
        return {one for one in sources if self.constants.array(one) is None}

    def in_branch_of(self, graph: object, outer: object) -> bool:
        """``graph`` is ``outer``, or runs at most once for it: it is a branch of an If in it."""
        while graph is not outer:
            owner = self.owners.get(graph)  # type: ignore[call-overload]
            if owner is None or standard(owner) != "If":
                return False
            graph = owner.graph
        return True

    def read_by(self, value: ir.Value) -> tuple[ir.Node, ...]:
        """The nodes that read ``value``; one that thousands read is listed once, not for each."""
        if value not in self.readers:
            self.readers[value] = tuple(node for node, _ in value.uses())
        return self.readers[value]

    def describe(self, value: ir.Value | None) -> str:
        """A value as a reader of the report knows it."""
        if value is None:
            return "nothing"
        words, producer = self.types.words(value), value.producer()
        if producer is not None and (source := producer.metadata_props.get(FORMERLY)):
            return f"a value in the node {source!r} ({words})"
        kind = "initializer" if value.is_initializer() else "value"
        if value.is_graph_input():
            kind = "graph input with a default" if value.is_initializer() else "graph input"
        return f"{kind} {value.name!r} ({words})"

    def fits(self, rank: int, radial: Radial) -> bool:
        """A constant of this rank does not raise the rank of ``radial``."""
        if rank == 0 or (rank == 1 and radial.kept):
            return True
        whole = self.types.rank(radial.x.root)
        if whole is None:
            return False
        return rank <= (whole if radial.kept else whole + radial.axis)

    def advance(self, value: ir.Value, norm: Norm, match: Match | None) -> None:
        """``value`` now is ``norm``; a complete match takes the place of its owner."""
        if match is not None:
            if norm.owner is not None:
                self.matches.pop(norm.owner.output, None)
            self.matches[value] = match
            norm = dataclasses.replace(norm, owner=match)
            if norm.radial is not None:
                norm.radial.candidate.taken = True
        self.facts[value] = norm

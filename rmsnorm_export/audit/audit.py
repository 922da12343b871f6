"""After recognition: the norms in what no match and no refusal has a word for."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.audit.behaviour import Behaviour, EpsilonPlace, Part, is_centred, norm_of
from rmsnorm_export.audit.fusing import Fusing
from rmsnorm_export.audit.operators import (
    ADDITIONS,
    ENDS,
    NOTHING,
    SIZES,
    SOME,
    Operators,
    Traits,
    is_beside,
)
from rmsnorm_export.audit.parts import (
    Layout,
    Region,
    arrays_of,
    layouts,
    model_of,
    region_of,
    row_of,
    run,
)
from rmsnorm_export.audit.places import TOP, Place, common
from rmsnorm_export.audit.twins import Twins
from rmsnorm_export.printable import first_line, plural
from rmsnorm_export.recognize.bodies import bodies_of, inputs_of
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.context import FLOATS
from rmsnorm_export.recognize.facts import Candidate
from rmsnorm_export.recognize.functions import callees_first, is_own, reached
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, refuse, source_name
from rmsnorm_export.recognize.scan import NATIVE, Recognition
from rmsnorm_export.recognize.shape_values import outside

_SETTLED = frozenset(("all-axes", "empty-row", "layer-norm", "not-the-mean"))
"""Look-alikes that recognition has followed to the end, as a rule."""
_CHOICES = ("Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
"""Operators that may tell short rows, to replace them."""

_MOST_BEHIND, _MOST_EXAMINED = 8, 2
"""Values in front of one that it may be a norm of, and those of them that it is examined with."""
_MOST_TRIED = 32
"""Values that are examined as the norm of one."""

_MOST_PROVED = 512
"""Norms that are proved, or refused, of one model."""

_COST = 1 << 15
"""Elements that are computed in the time that it takes to cut out and run a node, 0.2 ms."""
_WORK, _WORK_OF_NODE = _COST << 12, _COST << 2
"""Elements that are computed of one model, whatever it asks for, and more of each of its nodes."""

_EPSILONS: Mapping[EpsilonPlace, str] = {
    "inside": "epsilon {}", "behind": "epsilon {} behind the root", "floor": "a root of {} at least"
}  # fmt: skip
_FLOWS = {"If": NOTHING, "Loop": SOME, "Scan": SOME}
_BOTH, _PIECE = 3, 4
_RUNS = 6
_NEAR = 1e-4
"""Of a gain."""


def audited(model: ir.Model, recognition: Recognition) -> tuple[list[Match], tuple[Refusal, ...]]:
    """Return the norms that a recognition did not follow, and the refusals with those among them.

    A part of the graph that sums, takes a root and is a function of one value x, of whose shape its
    output is, is evaluated on rows, where no match covers it. A norm takes the place of what
    recognition said of it, as a match where a proof holds. What depends on another value than x is
    passed over; what cannot be evaluated for another reason is refused as what may be one.

    Args:
        model: not changed.
        recognition: of this model.
    """
    audit = _Audit(model, recognition)
    audit.run()
    kept = (r for candidate, r in recognition.told.items() if candidate.node not in audit.mistaken)
    return audit.matches, (*kept, *audit.refusals)


class _Audit:
    def __init__(self, model: ir.Model, recognition: Recognition) -> None:
        self._model, self._types = model, recognition.types
        self._explained: set[ir.Node | None] = {
            node for match in recognition.matches for node in match.nodes
        }
        told = recognition.told.items()
        settled = (c for c, r in told if r.reason in _SETTLED and not _goes_on(c))
        self._lengths = {c.node for c, r in told if r.reason == "not-the-mean"}
        self._told = {c.node for c, _ in told}
        self._refused = {c.node for c, r in told if r.kind == "norm"}
        for candidate in (*recognition.sums, *settled):
            self._explained |= {candidate.node, candidate.root}
        live = reached(model, NATIVE) if model.functions else ()
        functions = ((key, model.functions[key]) for key in live)
        self._functions = {key: function for key, function in functions if not is_own(function)}
        holders: list[ir.Graph | ir.Function] = [model.graph, *self._functions.values()]
        self._nodes = [node for holder in holders for node in holder.all_nodes()]
        op_types = {node.op_type for node in self._nodes}
        self._operators = Operators(recognition.types, self._explained, op_types)
        self._places: dict[ir.Value, Place] = {}
        self._tried: dict[Place, int] = {}
        self._sums: set[ir.Node] = set()
        self._known: dict[tuple[object, ...], Any] = {}
        self._twins = Twins(self._operators.constants)
        self._failed: dict[tuple[ir.Value, ir.Value], tuple[Region, Exception]] = {}
        self._evaluated: set[tuple[ir.Value, ir.Value]] = set()
        self._evaluated_sums: set[ir.Node] = set()
        self._work = _WORK
        self._fusing = Fusing(model, recognition.types)
        self.matches: list[Match] = []
        self.refusals: list[Refusal] = []
        self.mistaken: set[ir.Node] = set()

    def run(self) -> None:
        if not any(map(self._operators.takes_root, self._nodes)):
            return
        if not self._functions and not self._may_find(self._model.graph):
            return
        for key in callees_first(self._model):
            if key in self._functions:
                scope = "::".join(part for part in key if part)
                self._operators.calls[key] = self._visit(self._functions[key], scope)
        self._failed.clear()  # what a function computes is evaluated where it is called, too
        self._visit(self._model.graph, "main")
        for ends, (region, error) in self._failed.items():
            sums = self._sums_in(region)
            guessed = None in (outside(self._types.shape(region.x)) or (None,))
            clear = ends in self._evaluated or (guessed and sums <= self._evaluated_sums)
            if not clear and sums.isdisjoint(self.mistaken | self._told):
                self.refusals.append(self._unknown(region, error))
                self.mistaken |= sums

    def _may_find(self, graph: ir.Graph) -> bool:
        """Return whether a sum and a root are on one way anywhere; most files have none."""
        marks = dict.fromkeys(graph.inputs, 0)
        for node in graph:
            if node.attributes and bodies_of(node):
                return True
            variables = [value for value in node.inputs if value in marks]
            if not variables or node.op_type in SIZES:
                continue
            traits = self._operators.traits(node, variables)
            mark = 0
            if not traits.ends:
                before = [marks[value] for value in variables]
                mark = functools.reduce(operator.or_, before)
                mark |= traits.sums | traits.roots << 1 | traits.pieces << 2
                if node.op_type in ADDITIONS and sum(one & _PIECE for one in before) > _PIECE:
                    mark |= SOME.sums
            if mark & _BOTH == _BOTH:
                return True
            marks |= dict.fromkeys(node.outputs, mark)
        return False

    def _visit(self, holder: ir.Graph | ir.Function, scope: str) -> Traits:
        """Go through a graph and its subgraphs; return what a call of it does to a row."""
        self._opsets, said = holder.opset_imports, len(self.refusals)
        self._places |= {value: Place(value, TOP) for value in self._rows(holder)}
        waiting: list[tuple[Iterator[ir.Node], ir.Node | None, str]] = [(iter(holder), None, scope)]
        while waiting:
            nodes, flow, self._scope = waiting[-1]
            for node in nodes:
                bodies = bodies_of(node)
                if bodies:
                    waiting.append((iter(()), node, self._scope))  # once its bodies are done
                    waiting += self._entered(node, bodies)
                    break
                self._stand(node)
            else:
                waiting.pop()
                if flow is not None:
                    self._leave(flow)
        ends = [self._places[value] for value in holder.outputs if value in self._places]
        return Traits(
            sums=any(place.sums for place in ends),
            roots=any(place.roots for place in ends),
            pieces=any(place.pieces for place in ends),
            mixes=all(place.mixes for place in ends),
            ends=len(self.refusals) > said
            or not self._refused.isdisjoint(holder.all_nodes())
            or any(place.ends for place in ends),
        )

    def _entered(
        self, node: ir.Node, bodies: Sequence[tuple[str, ir.Graph]]
    ) -> Iterator[tuple[Iterator[ir.Node], None, str]]:
        """Give the bodies of control flow; what goes in depends on all that ``node`` reads."""
        before = [self._places[value] for value in inputs_of(node) if value in self._places]
        for label, body in bodies:
            for value in self._rows(body):
                self._places[value] = Place(value, TOP)
                self._places[value].through(before, NOTHING)
            yield iter(body), None, f"{self._scope}/{node.name or node.op_type}.{label}"

    def _leave(self, node: ir.Node) -> None:
        """Find the places of what comes out of control flow: those in its bodies."""
        before = [self._places[value] for value in inputs_of(node) if value in self._places]
        ends = [v for _, body in bodies_of(node) for v in body.outputs if v in self._places]
        traits = _FLOWS.get(standard(node), ENDS)
        if traits.sums:
            self._sums.add(node)
        if before:
            self._put(node, before, [self._places[v] for v in ends] or before, traits)

    def _rows(self, graph: ir.Graph | ir.Function) -> list[ir.Value]:
        """Return the inputs that norms may be of: a vector beside these is a weight."""
        ranks = {value: self._types.rank(value) for value in graph.inputs}
        rows = [v for v, rank in ranks.items() if rank not in (0, 1) and not v.is_initializer()]
        return rows or list(graph.inputs)

    def _stand(self, node: ir.Node) -> None:
        """Find the places of the outputs of a node, and try them as norms."""
        self._work += _WORK_OF_NODE
        variables = [value for value in node.inputs if value in self._places]
        if standard(node) in SIZES or not variables:
            return
        traits = self._operators.traits(node, variables)
        before = [self._places[value] for value in variables]
        depth = common(before)
        if node.op_type in ADDITIONS and sum(one.pieces > depth.pieces for one in before) > 1:
            traits = SOME
        if traits.sums:
            self._sums.add(node)
        if (first := self._twins.first(node, variables)) is not node:
            pairs = zip(node.outputs, first.outputs, strict=True)
            self._places |= {twin: self._places[value] for twin, value in pairs}
        else:
            self._put(node, before, before, traits)

    def _put(
        self, node: ir.Node, before: Sequence[Place], ways: Sequence[Place], traits: Traits
    ) -> None:
        """Place the outputs of a node that is computed from ``before``, on these ways to it."""
        parent = common(before)
        for value in node.outputs:
            place = self._places[value] = Place(value, parent)
            place.through(ways, traits)
            if place.sums and place.roots:
                self._try(place)

    def _try(self, y: Place) -> None:
        """Examine ``y`` as a norm of the values that it depends on, the nearest first."""
        x, examined = y.parent, 0
        for _ in range(_MOST_BEHIND):
            if x.value is None or y.value is None or x.ends != y.ends:
                return
            tried = self._tried.get(x, 0)
            if y.may_be_of(x) and tried < _MOST_TRIED and self._may_be(x.value, y.value):
                self._tried[x], examined = tried + 1, examined + 1
                if self._is_clear(x, x.value, y.value):
                    y.explained(x)
                    return
                if examined == _MOST_EXAMINED:
                    return
            x = x.parent

    def _may_be(self, x: ir.Value, y: ir.Value) -> bool:
        """Return whether two values are of float types and of one shape, as far as is known."""
        if any(self._types.dtype(value) not in (None, *FLOATS) for value in (x, y)):
            return False
        one, other = self._types.shape(x), self._types.shape(y)
        if one is None or other is None:
            return one != () and other != ()
        numbers = [(a, b) for a, b in zip(one, other, strict=False) if {type(a), type(b)} == {int}]
        return len(one) == len(other) > 0 and all(a == b for a, b in numbers)

    def _is_clear(self, x: Place, start: ir.Value, end: ir.Value) -> bool:
        """Say of a norm that it is one; return whether it is clear what ``end`` is."""
        self._work -= _COST
        if self._work <= 0 and self._failed:  # one part says that the work is done
            return False
        region = region_of(start, end, self._twins.of(start))
        if region is None:
            return False
        norm = self._norm(region)
        if norm is None or self._is_length(region, norm[0]):
            return False
        row = self._centred_row(x, norm[0])
        if row is None:
            self._report(region, *norm)
        return row is None or not is_beside(row)

    def _is_length(self, region: Region, norm: Behaviour) -> bool:
        """Return whether rows are of one length other than that of an RMSNorm, as was told."""
        same = np.ptp(norm.gain) < _NEAR and abs(norm.gain.flat[0] - 1) > _NEAR
        return bool(same) and not self._lengths.isdisjoint(region.nodes)

    def _weighted(self, region: Region) -> Region | None:
        """Return a region with the product of its output and a row of weights, or a number."""
        uses, dims = region.y.uses(), self._types.shape(region.y)
        if len(uses) != 1 or region.y.is_graph_output() or not dims:
            return None
        ((node, index),) = uses
        other = node.inputs[1 - index] if standard(node) == "Mul" else None
        here = node.graph is region.nodes[-1].graph
        weighs = here and other and self._types.shape(other) in (dims[-1:], (), (1,))
        return region_of(region.x, node.outputs[0], region.twins) if weighs else None

    def _norm(self, region: Region) -> tuple[Behaviour, Layout] | None:
        """Return the norm that a region is, with the first sizes with which it is one.

        Those with which its rows are as long as in the file go first.
        """
        dims, dtype, norms = self._types.shape(region.x), self._types.dtype(region.x), []
        for layout in layouts(dims):
            norm = self._judged(region, layout, norm_of, dtype)
            if norm is not None and row_of(dims, norm.axes) == row_of(layout.shape, norm.axes):
                return norm, layout
            norms += [(norm, layout)] if norm is not None else []
        return norms[0] if norms else None

    def _sums_in(self, region: Region) -> set[ir.Node]:
        bodies = (body for node in region.nodes for _, body in bodies_of(node))
        inner = (node for body in bodies for node in body.all_nodes())
        return self._sums.intersection((*region.nodes, *inner))

    def _centred_row(self, x: Place, norm: Behaviour) -> ir.Value | None:
        """Return what the mean was taken from to make the rows of x: their mean square is a
        variance. None: they are no such rows."""
        z = x.parent
        for _ in range(_MOST_BEHIND):
            if z.value is None or x.value is None or z.ends != x.ends:
                break
            region = region_of(z.value, x.value, self._twins.of(z.value))
            sizes = () if region is None else layouts(self._types.shape(z.value))
            if region and any(self._judged(region, s, is_centred, norm.axes) for s in sizes):
                return z.value
            z = z.parent
        return None

    def _judged(
        self,
        region: Region,
        layout: Layout,
        judge: Callable[[Part, Sequence[int], Any], Any],
        about: object,
    ) -> Any:
        """Return what ``judge`` says of a region; of those alike one is evaluated.

        None where it cannot be evaluated, or the work that a model of this size may take is done.
        """
        self._work -= len(region.nodes) * _COST
        try:
            model = model_of(
                region, layout, self._types, self._opsets, tuple(self._model.functions.values())
            )
            content = ir.to_proto(model).SerializeToString(deterministic=True)
            key = (content, layout.shape, judge.__name__, about)
            if key not in self._known:
                self._work -= len(region.nodes) * math.prod(layout.shape) * _RUNS
                if self._work < 0:
                    raise RuntimeError("all work that a file of this size may take is done")
                compute = functools.partial(run, model, arrays_of(region, layout, self._types))
                self._known[key] = judge(compute, layout.shape, about)
            if judge is norm_of:
                self._evaluated.add((region.x, region.y))
                self._evaluated_sums |= self._sums_in(region)
            return self._known[key]
        except Exception as error:  # of any part of any file
            if judge is norm_of:
                self._failed.setdefault((region.x, region.y), (region, error))
            return None

    def _report(self, region: Region, norm: Behaviour, layout: Layout) -> None:
        """Take a norm, or refuse it by its nodes, once for its sums; what was said of them goes."""
        sums = self._sums_in(region)
        if sums <= self.mistaken:
            return
        match: Match | str = "a file has no more proofs than these"
        if len(self.matches) + len(self.refusals) < _MOST_PROVED:
            weighted = self._weighted(region)
            scaled = None if weighted is None else self._norm(weighted)
            if weighted is not None and scaled is not None:
                match = self._fusing.match(weighted, *scaled, self._scope)
            if not isinstance(match, Match):
                match = self._fusing.match(region, norm, layout, self._scope)
        if isinstance(match, Match):
            self.matches.append(match)
        elif self._refused.isdisjoint(sums):
            self.refusals.append(self._refusal(region, norm, match))
        else:
            return
        self.mistaken |= sums

    def _refusal(self, region: Region, norm: Behaviour, why: str) -> Refusal:
        first, last = norm.axes
        row = row_of(self._types.shape(region.x), norm.axes)
        n = math.prod(size for size in row if isinstance(size, int))
        rows = f"rows of {n if norm.groups == 1 else norm.n}"
        if norm.groups == 1 and not (row and all(isinstance(size, int) for size in row)):
            rows = f"rows over axes {list(range(first, last + 1))}"
        epsilon = _EPSILONS[norm.place].format(f"{norm.epsilon:.3g}")
        if any(self._types.shape(value) in (None, (), (1,)) for value in region.parameters):
            epsilon = "an epsilon that the caller may give"
        begin, end = (repr(source_name(node)) for node in (region.nodes[0], region.nodes[-1]))
        return refuse(
            region.nodes[-1], "spelling-unknown",
            f"computes {'an L2 norm' if norm.length else 'an RMSNorm'} of {rows} with {epsilon}, "
            f"by nodes from {begin} to {end} that recognition does not follow",
            f"{plural(len(region.nodes), 'node')} from {region.x.name!r} "
            f"({self._types.words(region.x)}), and no proof: {why}",
            "write it as x / Sqrt(ReduceMean(x * x) + epsilon), and report the model: its spelling "
            "is one to be followed", self._scope,
        )  # fmt: skip

    def _unknown(self, region: Region, error: Exception) -> Refusal:
        begin, end = (repr(source_name(node)) for node in (region.nodes[0], region.nodes[-1]))
        return refuse(
            region.nodes[-1], "not-evaluated",
            f"sums and takes a root, by nodes from {begin} to {end}, and cannot be evaluated: it "
            "may be an RMSNorm", getattr(error, "found", "") or first_line(error),
            "if it is one, write it as x / Sqrt(ReduceMean(x * x) + epsilon)", self._scope,
        )  # fmt: skip


def _goes_on(candidate: Candidate) -> bool:
    """Return whether a look-alike may become a norm: the LayerNorm of a row beside its negative, a
    row of length one where short ones are replaced."""
    if candidate.centred is not None:
        return is_beside(candidate.centred.inputs[0])
    nodes = {candidate.root or candidate.node}
    for _ in range(3):
        nodes = {user for node in nodes for value in node.outputs for user, _ in value.uses()}
        if any(standard(node) in _CHOICES for node in nodes):
            return True
    return False

"""The first difference of two models, whatever runs them: the search, and its outcome in words.

From an output that differs it goes back: to a value before it that differs, as long as there is
one. It ends at a value that differs while the nearest compared values before it all agree. That
does not depend on every value after the place differing, which is not so: masks and positions
agree everywhere. How far back to look next is chosen as in a binary search, a batch at a time, so
that only one batch of values is held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from rmsnorm_export.compare.backend import Backend, ReadValues
from rmsnorm_export.compare.outputs import Bounds, comparable, compare_output
from rmsnorm_export.compare.result import Difference, DifferenceSite, OutputComparison
from rmsnorm_export.errors import Error
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.order import graphs_in, subgraphs
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, quoted
from rmsnorm_export.recognize.match import Match, module_path
from rmsnorm_export.recognize.scan import recognize

HALF_TYPES = ("", "float16", "bfloat16")
"""None of them, then the finer and the coarser."""


BATCH = 16
"""Values that are spread over the part that is searched, each round: four rounds tell 80,000 values
apart. The nearest values before the one in hand come on top."""

_HUGE = 10.0
"""Times the largest element that differs; more would let a difference of that size pass."""


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


@dataclasses.dataclass(slots=True, eq=False)
class Search:
    """A search, which ``run`` makes; afterwards it says where the difference begins.

    Attributes:
        readers: one for each model.
        flows: the graphs.
        shared: names of the values that both have.
        target: the output that differs.
        bounds: as for the outputs.
        value: the earliest that is known to differ; at the end, the first.
        tested: what was compared.
        odd: values of the same name that could not be, being of another type or shape.
        hidden: the difference went away with values marked as outputs, and no optimization.
    """

    readers: tuple[ReadValues, ReadValues]
    flows: tuple[Flow, Flow]
    shared: frozenset[str]
    target: str
    bounds: Bounds
    value: str = ""
    tested: dict[str, OutputComparison] = dataclasses.field(default_factory=dict)
    odd: list[str] = dataclasses.field(default_factory=list)
    hidden: bool = False

    def run(self, comparison: OutputComparison) -> None:
        """Follow a difference to where it begins.

        Args:
            comparison: of the target, which failed.

        Raises:
            Error: a model cannot be made ready with values as outputs.
        """
        self.value, self.tested[self.target] = self.target, comparison
        while batch := self._next_batch():
            if self._test(batch).passed:
                self.hidden = True
                return
            before = self._shared_before(self.value)
            worse = [name for name in before if name in self.tested and not self.agrees(name)]
            self.value = min(worse, key=self._place, default=self.value)

    def nearest(self, value: str) -> list[str]:
        """Return the first shared values on every way back from a value, in order."""
        stops = self._shared_before(value)
        names = set().union(*(flow.ancestors(value, stops) for flow in self.flows)) & stops
        return sorted(names, key=self._place)

    def agrees(self, name: str) -> bool:
        """Return whether a value was compared and is within bounds."""
        return name in self.tested and self.tested[name].passed

    def _place(self, name: str) -> int:
        return self.flows[1].order[name]

    def _shared_before(self, value: str) -> set[str]:
        """Return the shared values that a value is computed from, in both graphs."""
        a, b = (flow.ancestors(value) for flow in self.flows)
        return (a & b & self.shared).difference(self.odd, [self.target])

    def _next_batch(self) -> list[str]:
        """Choose what to compare next; nothing where the nearest values are known to agree.

        Besides the nearest, values evenly spread between the last one that agrees and the one in
        hand.
        """
        near = [name for name in self.nearest(self.value) if name not in self.tested]
        if not near:
            return []
        before = self._shared_before(self.value)
        start = max((self._place(name) for name in before if self.agrees(name)), default=-1)
        rest = before.difference(near, self.tested)
        window = sorted((n for n in rest if self._place(n) > start), key=self._place)
        step = max(1, -(-len(window) // BATCH))
        return [*near, *window[step // 2 :: step]]

    def _test(self, names: list[str]) -> OutputComparison:
        """Run both models with these values, compare them, and return the target's comparison."""
        first, second = (read([*names, self.target]) for read in self.readers)
        half = max((flow.half for flow in self.flows), key=HALF_TYPES.index)
        bounds = dataclasses.replace(self.bounds, through=half)
        for name in names:
            a, b = first[name], second[name]
            if not comparable(a, b):
                self.odd.append(name)
                continue
            self.tested[name] = compare_output(name, b, a, bounds, largest=_largest_to_go_by(a, b))
        return compare_output(self.target, second[self.target], first[self.target], self.bounds)


def _largest_to_go_by(a: Array, b: Array) -> float | None:
    """Return the largest ``|a|`` but for huge elements that are equal in both.

    A mask puts the lowest number of the type, or -1e9, beside scores of a few units: relative to
    that, nothing ever differs.
    """
    if a.dtype.kind in "OSUbiu":
        return None
    wide, other = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    finite = np.isfinite(wide) & np.isfinite(other)
    differ = finite & (wide != other)
    if not differ.any():
        return None
    cut = _HUGE * max(float(wide[differ].max()), float(other[differ].max()))
    return float(wide[finite & (wide <= cut)].max(initial=0.0))


def locate_difference(
    sides: tuple[Backend, Backend],
    feeds: Mapping[str, Array],
    outputs: Sequence[OutputComparison],
    bounds: Bounds,
) -> tuple[Difference | None, str]:
    """Find where two models begin to differ, or say why that was not looked for.

    Args:
        sides: the two models.
        feeds: their inputs.
        outputs: that differ.
        bounds: of the comparison.
    """
    try:
        with sides[0].searched(feeds) as first, sides[1].searched(feeds) as second:
            flows = (Flow(first[0]), Flow(second[0]))
            # The earliest: others may follow from it.
            target = min(outputs, key=lambda one: flows[1].order.get(one.name, -1))
            search = Search(
                (first[1], second[1]), flows, shared_values(*flows), target.name, bounds
            )
            search.run(target)
            return describe_difference(search), ""
    except Error as error:
        why = f"{one_line(error.what, 200)} {one_line(error.found, 300)}".strip()
        return None, f"the first difference was not looked for: {why}"


def describe_difference(search: Search) -> Difference:
    """Return the outcome of a search: the value, the node, the norm at or before it."""
    flow, value = search.flows[1], search.value
    near, node = search.nearest(value), flow.node(value)
    site = _nearest_site(search.flows, value)
    return Difference(
        value=value,
        node="" if node is None else node.name or node.op_type,
        op="" if node is None else node.op_type,
        module=None if node is None else module_path(node),
        site=site,
        inputs=tuple(near),
        inputs_agree=not search.hidden and all(map(search.agrees, near)),
        conclusion=_conclusion(search, near, site),
        comparison=search.tested[value],
        compared=len(search.tested.keys() - {search.target}),
        shared=len(search.shared - {search.target}),
    )


def _nearest_site(flows: tuple[Flow, Flow], value: str) -> DifferenceSite | None:
    """Return the norm that computes the value, or else the last one before it."""
    for flow in flows[::-1]:
        norms = {value} & flow.norms.keys() or flow.ancestors(value) & flow.norms.keys()
        if norms:
            last = max(norms, key=flow.order.__getitem__)
            match, producer = flow.norms[last], flow.norms[last].output.producer()
            name = "" if producer is None else producer.name
            place: Literal["at", "before"] = "at" if last == value else "before"
            return DifferenceSite(name or last, match.spec.kind, match.module, place)
    return None


def _conclusion(search: Search, near: Sequence[str], site: DifferenceSite | None) -> str:
    if search.hidden:
        return (
            "without the runtime's graph optimization, and with values inside marked as outputs,"
            " the models agree: what the runtime fuses makes the difference"
        )
    text = f"{quoted(search.value)} differs"
    if site is not None and site.place == "at":
        text = f"this site differs: {site.op} {quoted(site.name)}"
    if not near:
        return f"{text}; no value that both models have lies before it"
    tested = [search.tested[name] for name in near]
    share = max(one.metrics.max_abs / (one.bound_abs or 1.0) for one in tested)
    return (
        f"{text}; what it is computed from agrees, within {share:.0%} of its bound: "
        + ", ".join(map(quoted, near[-3:]))
    )

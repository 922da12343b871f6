"""Where two models begin to differ, whatever runs them: the search, and what it found in words.

From an output that differs it goes back: to a value before it that differs, as long as there is
one. It ends at a value that differs while the nearest compared values before it all agree. That
does not depend on every value after the place differing, which is not so: masks and positions
agree everywhere. How far back to look next is chosen as in a binary search, a batch at a time, so
that only one batch of values is held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np

from rmsnorm_export.compare.backend import Backend, ReadValues
from rmsnorm_export.compare.flow import HALF_TYPES, Flow, shared_values
from rmsnorm_export.compare.outputs import Bounds, comparable, compare_output, without_unlike_masks
from rmsnorm_export.compare.result import Difference, DifferenceSite, OutputComparison
from rmsnorm_export.errors import Error, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, quoted
from rmsnorm_export.recognize.match import Match

BATCH = 16
"""Values that are spread over the part that is searched, each round: four rounds tell 80,000 values
apart. The nearest values before the one in hand come on top."""

CLOSE = 0.1
"""Share of its bound that a difference within bounds takes at least to be told."""

JUMP = 4.0
"""A difference begins where it takes so much more of the bound than what comes in. Honest rounding
grows by less from one node to the next, so that no node is blamed for what all share."""

_MOST_RUNS = 40
"""Runs that may be spent on that."""

_HUGE = 10.0
"""Times the largest element that differs; more would let a difference of that size pass."""


@dataclasses.dataclass(slots=True, eq=False)
class Search:
    """A search, which ``run`` makes; afterwards it says where the difference begins.

    Attributes:
        readers: one for each model.
        flows: the graphs, that of the second model last; one where the other model is PyTorch.
        shared: names of the values that both have.
        target: the output that differs.
        bounds: as for the outputs.
        value: the earliest that is known to differ; at the end, the first.
        tested: what was compared.
        odd: values of the same name that could not be: of another type or shape, or not to be had.
        hidden: the difference went away when values were marked as outputs.
        beyond: where a difference that begins within bounds, at ``value``, leaves them; or "".
    """

    readers: tuple[ReadValues, ReadValues]
    flows: tuple[Flow, ...]
    shared: frozenset[str]
    target: str
    bounds: Bounds
    value: str = ""
    tested: dict[str, OutputComparison] = dataclasses.field(default_factory=dict)
    odd: list[str] = dataclasses.field(default_factory=list)
    hidden: bool = False
    beyond: str = ""

    def run(self, comparison: OutputComparison) -> None:
        """Follow a difference to where it begins.

        Args:
            comparison: of the target, which failed.

        Raises:
            Error: a model cannot be made ready with values as outputs.
        """
        self.value, self.tested[self.target] = self.target, comparison
        while batch := self._next_batch():
            again = self._test(batch)
            if again is not None and again.passed:
                self.hidden = True
                return
            before = self._shared_before(self.value)
            worse = [name for name in before if name in self.tested and not self.agrees(name)]
            self.value = min(worse, key=self._place, default=self.value)
        self._follow_within_bounds()

    def _follow_within_bounds(self) -> None:
        """Go back to where a difference jumps that only later grows beyond the bounds.

        As long as most of what a value differs by comes into it, that is followed. Where it fades
        out step by step, there is no such place, and all is left as it is.
        """
        value = self.value
        for _ in range(_MOST_RUNS):
            near = self.nearest(value)
            if fresh := [name for name in near if name not in self.tested]:
                self._test(fresh)
                continue
            shares = {name: share_of_bound(self.tested[name]) for name in near}
            worst = max(shares, key=shares.__getitem__, default="")
            share = share_of_bound(self.tested[value])
            if not worst or shares[worst] * JUMP <= share:
                if value != self.value and share > CLOSE:
                    self.beyond, self.value = self.value, value
                return
            value = worst

    def nearest(self, value: str) -> list[str]:
        """The first shared values on every way back from a value, in order."""
        stops = self._shared_before(value)
        names = set().union(*(flow.nearest(value, stops)[0] for flow in self.flows))
        return sorted(names, key=self._place)

    def agrees(self, name: str) -> bool:
        """Whether a value was compared and is within bounds."""
        return name in self.tested and self.tested[name].passed

    def _place(self, name: str) -> int:
        return self.flows[-1].order[name]

    def _shared_before(self, value: str) -> set[str]:
        """Shared values that a value is computed from, in every graph."""
        ways = [flow.ancestors(value) for flow in self.flows]
        return (set.intersection(*ways) & self.shared).difference(self.odd, [self.target])

    def _next_batch(self) -> list[str]:
        """What to compare next; nothing where the nearest values are known to agree.

        Besides the nearest, values evenly spread between the last one that agrees and the one in
        hand.
        """
        near = self.nearest(self.value)
        if all(name in self.tested for name in near):
            return []
        before = self._shared_before(self.value)
        start = max((self._place(name) for name in before if self.agrees(name)), default=-1)
        fresh = [n for n in before if n not in self.tested and self._place(n) > start]
        window = sorted(set(fresh) - set(near), key=self._place)
        step = max(1, -(-len(window) // BATCH))
        return [*(n for n in near if n not in self.tested), *window[step // 2 :: step]]

    def _test(self, names: list[str]) -> OutputComparison | None:
        """Run both models with these values, and compare them.

        Returns:
            The comparison of the target in the same runs; None where it could not be had.
        """
        first, second = (_read_what_can_be(read, [*names, self.target]) for read in self.readers)
        for name in names:
            a, b = first.get(name), second.get(name)
            if a is None or b is None or not comparable(a, b):
                self.odd.append(name)
                continue
            a, b = without_unlike_masks(a, b, self.bounds)
            # float32 that comes from half types is no better than they are.
            ways = [flow.through(name) for flow in self.flows]
            through = max(ways, key=HALF_TYPES.index)
            self.tested[name] = compare_output(
                name, b, a, self.bounds, largest=_largest_to_go_by(a, b), through=through
            )
        a, b = first.get(self.target), second.get(self.target)
        return None if a is None or b is None else compare_output(self.target, b, a, self.bounds)


def share_of_bound(comparison: OutputComparison) -> float:
    """Share of its bound that a difference takes; above 1 it fails."""
    metrics = comparison.metrics
    if not metrics.nan_inf_agree:
        return math.inf
    pairs = [(metrics.max_abs, comparison.bound_abs)]
    if comparison.bound_ulp is not None:
        pairs.append((metrics.max_ulp, comparison.bound_ulp))
    return max(far / bound if bound else math.inf if far else 0.0 for far, bound in pairs)


def _largest_to_go_by(a: Array, b: Array) -> float | None:
    """The largest ``|a|`` but for huge elements that are equal in both.

    A mask puts the lowest number of the type beside scores of a few units: relative to that,
    nothing ever differs.
    """
    if a.dtype.kind in "OSUbiu":
        return None
    wide, other = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    finite = np.isfinite(wide) & np.isfinite(other)
    differ = finite & (wide != other)
    if not differ.any():
        return None
    cut = _HUGE * max(float(wide[differ].max()), float(other[differ].max()))
    largest = float(wide[finite & (wide <= cut)].max(initial=0.0))
    # Below its smallest normal number a type has fewer digits.
    limits: Any = ml_dtypes.finfo  # NumPy's does not know bfloat16
    return max(largest, *(float(limits(one.dtype).smallest_normal) for one in (a, b)))


def _read_what_can_be(read: ReadValues, names: list[str]) -> Mapping[str, Array]:
    """The values that can be had; a runtime may refuse to give single ones away."""
    try:
        return read(names)
    except VerificationError:
        if len(names) == 1:
            return {}
        half = len(names) // 2
        return {**_read_what_can_be(read, names[:half]), **_read_what_can_be(read, names[half:])}


_NOT = "the first difference was not looked for: "


def locate_difference(
    sides: tuple[Backend, Backend],
    feeds: tuple[Mapping[str, Array], Mapping[str, Array]],
    outputs: Sequence[OutputComparison],
    values: tuple[Mapping[str, Array], Mapping[str, Array]],
    bounds: Bounds,
) -> tuple[Difference | None, str]:
    """Where two models begin to differ, or why that was not looked for.

    Args:
        sides: the two models.
        feeds: the inputs of each.
        outputs: of the comparison, of which one failed at least.
        values: the outputs of both, by name.
        bounds: of the comparison.
    """
    for side in sides:
        if side.closed:
            return None, _NOT + side.closed
    graphs = [None if side.graph is None else Flow(side.graph) for side in sides]
    flows = tuple(flow for flow in graphs if flow is not None)
    if not flows:
        return None, f"{_NOT}neither model is an ONNX graph"
    if len(flows) == 2:
        shared = shared_values(*flows)
    else:
        shared = frozenset(sides[graphs.index(None)].inside(flows[0]))
    failed = [output for output in outputs if not output.passed]
    # The earliest: others may follow from it.
    target = min(failed, key=lambda one: flows[-1].order.get(one.name, -1))
    try:
        with contextlib.ExitStack() as stack:
            first, second = (
                _reader(stack.enter_context(side.probing(fed, flow or flows[0])), flow, known)
                for side, fed, flow, known in zip(sides, feeds, graphs, values, strict=True)
            )
            search = Search((first, second), flows, shared, target.name, bounds)
            search.run(target)
            return describe_difference(search), ""
    except Error as error:
        return None, f"{_NOT}{one_line(error.what, 200)} {one_line(error.found, 300)}".strip()


def _reader(read: ReadValues, flow: Flow | None, known: Mapping[str, Array]) -> ReadValues:
    """What a model without a graph gives by the names of values, and its outputs."""
    return read if flow is not None else lambda names: {**read(names), **known}


def describe_difference(search: Search) -> Difference:
    """The outcome of a search: the value, the node, the norm at or before it."""
    flow, value = search.flows[-1], search.value
    near = search.nearest(value)
    node = flow.node(value)
    # Of the nodes besides the norm that compute the value, in the graph that has more of them.
    others = max(flow.others(value, near) for flow in search.flows)
    site = _nearest_site(search.flows, value, near, alone=not others)
    return Difference(
        value=value,
        node="" if node is None else node.name or node.op_type,
        op="" if node is None else node.op_type,
        module=flow.module(value),
        site=site,
        inputs=tuple(near),
        inputs_agree=not search.hidden and all(map(search.agrees, near)),
        conclusion=_conclusion(search, near, site, others),
        comparison=search.tested[value],
        compared=len(search.tested.keys() - {search.target}),
        shared=len(search.shared - {search.target}),
        output=search.target,
        notes=tuple(dict.fromkeys(_notes_on_search(search, near))),
    )


def _nearest_site(
    flows: Sequence[Flow], value: str, near: Sequence[str], *, alone: bool
) -> DifferenceSite | None:
    """The norm that computes the value, or is between it and those before; else the last one."""
    for flow in reversed(flows):
        match = flow.norm(value)
        if match is not None:
            return _difference_site(flows, match, "at" if alone else "among")
        match = flow.norm_in(flow.nearest(value, near)[1])
        if match is not None:
            return _difference_site(flows, match, "among")
    for flow in reversed(flows):
        norms = [name for name in flow.ancestors(value) if flow.norm(name) is not None]
        match = flow.norm(max(norms, key=flow.order.__getitem__, default=""))
        if match is not None:
            return _difference_site(flows, match, "before")
    return None


def _difference_site(
    flows: Sequence[Flow], match: Match, place: Literal["at", "among", "before"]
) -> DifferenceSite:
    output = match.output.name or ""
    producer = match.output.producer()
    # A norm that is spelled out knows its module better than one node that it became.
    same = (flow.norm(output) for flow in flows)
    spelled = (norm.module for norm in same if norm is not None and not norm.native)
    module = next(filter(None, spelled), match.module)
    name = producer.name if producer is not None and producer.name else output
    return DifferenceSite(name, match.spec.kind, module, place)


def _conclusion(
    search: Search, near: Sequence[str], site: DifferenceSite | None, others: int
) -> str:
    if search.hidden:
        return (
            "with values inside marked as outputs the models agree: the runtime fuses less then,"
            " and the place cannot be told"
        )
    more = "" if not others else f" and {others} other node{'s' if others > 1 else ''}"
    text = f"{quoted(search.value)} differs"
    if site is not None and site.place == "at":
        text = f"this site differs: {site.op} {quoted(site.name)}"
    elif site is not None and site.place == "among":
        text += f", which {site.op} {quoted(site.name)}{more} compute"
    elif more:
        text += f", which its node{more} compute"
    if search.beyond:
        share = share_of_bound(search.tested[search.value])
        text += f" by {share:.0%} of its bound, which it leaves at {quoted(search.beyond)}"
    if not near:
        return f"{text}; no value that both models have lies before it"
    if len(near) == 1:
        return f"{text}; the value that it is computed from agrees ({quoted(near[0])})"
    last = quoted(near[-1])
    return f"{text}; the {len(near)} values that it is computed from agree (the last is {last})"


def _notes_on_search(search: Search, near: Sequence[str]) -> list[str]:
    notes = []
    for flow in reversed(search.flows):
        notes += flow.not_entered(flow.nearest(search.value, near)[1])
    tested = [search.tested[name] for name in near if name in search.tested]
    share = max(map(share_of_bound, tested), default=0.0)
    if CLOSE < share <= 1 and not search.hidden:
        notes.append(
            f"the values before it take up to {share:.0%} of their bounds: the difference grows"
            " over several nodes"
        )
    if search.odd:
        notes.append(
            f"{len(search.odd)} values of the same name were passed over: their types or shapes"
            " differ, or they cannot be had"
        )
    return notes

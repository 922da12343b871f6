"""The search for the place where two models begin to differ.

From an output that differs it goes back: to a value before it that differs, as long as there is
one. It ends at a value that differs while the nearest compared values before it all agree. That
does not depend on every value after the place differing, which is not so: masks and positions
agree everywhere. How far back to look next is chosen as in a binary search, a batch at a time, so
that only one batch of values is held.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rmsnorm_export.compare.backend import ReadValues
from rmsnorm_export.compare.flow import HALF_TYPES, Flow
from rmsnorm_export.compare.outputs import Bounds, compare_output
from rmsnorm_export.compare.result import OutputComparison
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array

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
        known: the target, for a model that does not give it by this name.
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
    known: tuple[Array | None, Array | None]
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
            if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
                self.odd.append(name)
                continue
            # float32 that comes from half types is no better than they are.
            ways = [flow.through(name) for flow in self.flows]
            through = max(ways, key=HALF_TYPES.index)
            self.tested[name] = compare_output(
                name, b, a, self.bounds, largest=_largest_to_go_by(a, b), through=through
            )
        a, b = (
            values.get(self.target) if known is None else known
            for known, values in zip(self.known, (first, second), strict=True)
        )
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
    differ = finite & (a != b)
    if not differ.any():
        return None
    cut = _HUGE * max(float(wide[differ].max()), float(other[differ].max()))
    largest = float(wide[finite & (wide <= cut)].max(initial=0.0))
    # Below its smallest normal number a type has fewer digits.
    limits: Any = ml_dtypes.finfo  # NumPy's does not know bfloat16
    return max(largest, float(limits(a.dtype).smallest_normal))


def _read_what_can_be(read: ReadValues, names: list[str]) -> Mapping[str, Array]:
    """The values that can be had; a runtime may refuse to give single ones away."""
    try:
        return read(names)
    except VerificationError:
        if len(names) == 1:
            return {}
        half = len(names) // 2
        return {**_read_what_can_be(read, names[:half]), **_read_what_can_be(read, names[half:])}

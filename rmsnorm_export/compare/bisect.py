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

from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.result import Bounds, OutputComparison, compare_output
from rmsnorm_export.compare.side import Prober
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

_STEPS = 40
"""Runs that may be spent on that."""

_HUGE = 10.0
"""Times the largest element that differs; more would let a difference of that size pass."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Where to look.

    Attributes:
        probers: one for each model.
        flows: the graphs, that of the second model last; one where the other model is PyTorch.
        shared: names of the values that both have.
        target: the output that differs.
        known: the target, for a model that does not give it by this name.
        bounds: as for the outputs.
    """

    probers: tuple[Prober, Prober]
    flows: tuple[Flow, ...]
    shared: frozenset[str]
    target: str
    known: tuple[Array | None, Array | None]
    bounds: Bounds


@dataclasses.dataclass(slots=True, eq=False)
class Found:
    """Where the search is.

    Attributes:
        value: the earliest that is known to differ; at the end, the first.
        tested: what was compared.
        shared: values that can be compared.
        odd: values of the same name that could not be: of another type or shape, or not to be had.
        hidden: the difference went away when values were marked as outputs.
        beyond: where a difference that begins within bounds, at ``value``, leaves them; or "".
    """

    value: str
    tested: dict[str, OutputComparison]
    shared: set[str]
    odd: list[str]
    hidden: bool = False
    beyond: str = ""


def find_first(search: Search, comparison: OutputComparison) -> Found:
    """Follow a difference to where it begins.

    Args:
        search: where to look.
        comparison: of the target, which failed.

    Raises:
        Error: a model cannot be made ready with values as outputs.
    """
    found = Found(search.target, {search.target: comparison}, set(search.shared), [])
    found.shared.discard(search.target)
    while batch := _batch(search, found):
        seen = _compare(search, found, batch)
        if seen is not None and seen.passed:
            found.hidden = True
            return found
        before = _before(search, found)
        worse = [name for name in before if name in found.tested and not _agrees(found, name)]
        found.value = min(worse, key=search.flows[-1].order.__getitem__, default=found.value)
    return _within_bounds(search, found)


def _within_bounds(search: Search, found: Found) -> Found:
    """Where a difference jumps that only later grows beyond the bounds.

    As long as most of what a value differs by comes into it, that is followed. Where it fades out
    step by step, there is no such place, and the answer is ``found`` as it is.
    """
    earlier = dataclasses.replace(found, beyond=found.value)
    for _ in range(_STEPS):
        near = nearest(search, earlier)
        fresh = [name for name in near if name not in earlier.tested]
        if fresh:
            _compare(search, earlier, fresh)
            continue
        shares = {name: used(earlier.tested[name]) for name in near}
        worst = max(shares, key=shares.__getitem__, default="")
        share = used(earlier.tested[earlier.value])
        if not worst or shares[worst] * JUMP <= share:
            moved = earlier.value != found.value and share > CLOSE
            return earlier if moved else found
        earlier.value = worst
    return found


def nearest(search: Search, found: Found) -> list[str]:
    """The first shared values on every way back from the value in hand, in order."""
    stops = _before(search, found)
    names = set().union(*(flow.nearest(found.value, stops)[0] for flow in search.flows))
    return sorted(names, key=search.flows[-1].order.__getitem__)


def used(comparison: OutputComparison) -> float:
    """Share of its bound that a difference takes; above 1 it fails."""
    metrics = comparison.metrics
    if not metrics.nan_inf_agree:
        return math.inf
    shares = [_share(metrics.max_abs, comparison.bound_abs)]
    if comparison.bound_ulp is not None:
        shares.append(_share(metrics.max_ulp, comparison.bound_ulp))
    return max(shares)


def _share(distance: float, bound: float) -> float:
    return distance / bound if bound else math.inf if distance else 0.0


def _before(search: Search, found: Found) -> set[str]:
    """Shared values that the value in hand is computed from, in every graph."""
    ways = [flow.ancestors(found.value) for flow in search.flows]
    return set.intersection(*ways) & found.shared


def _agrees(found: Found, name: str) -> bool:
    return name in found.tested and found.tested[name].passed


def _batch(search: Search, found: Found) -> list[str]:
    """What to compare next; nothing where the nearest values are known to agree.

    Besides the nearest, values evenly spread between the last one that agrees and the one in hand.
    """
    before = _before(search, found)
    place = search.flows[-1].order
    near = nearest(search, found)
    if all(name in found.tested for name in near):
        return []
    start = max((place[name] for name in before if _agrees(found, name)), default=-1)
    fresh = [name for name in before if name not in found.tested and place[name] > start]
    window = sorted(set(fresh) - set(near), key=place.__getitem__)
    step = max(1, -(-len(window) // BATCH))
    return [*(n for n in near if n not in found.tested), *window[step // 2 :: step]]


def _compare(search: Search, found: Found, names: list[str]) -> OutputComparison | None:
    """Run both models with these values, and judge them.

    Returns:
        The comparison of the target in the same runs; None where it could not be had.
    """
    first, second = (_values(prober, [*names, search.target]) for prober in search.probers)
    for name in names:
        a, b = first.get(name), second.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found.shared.discard(name)
            found.odd.append(name)
        else:
            found.tested[name] = _judge(search, name, b, a, _scale(a, b))
    a, b = (
        values.get(search.target) if known is None else known
        for known, values in zip(search.known, (first, second), strict=True)
    )
    return None if a is None or b is None else _judge(search, search.target, b, a)


def _judge(
    search: Search, name: str, found: Array, expected: Array, largest: float | None = None
) -> OutputComparison:
    bounds = dataclasses.asdict(search.bounds)
    # float32 that comes from half types is no better than they are.
    ways = [flow.through(name) for flow in search.flows] if name != search.target else []
    through = max(ways, key=("", "float16", "bfloat16").index, default="")
    return compare_output(name, found, expected, largest=largest, through=through, **bounds)


def _scale(a: Array, b: Array) -> float | None:
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


def _values(prober: Prober, names: list[str]) -> Mapping[str, Array]:
    """The values that can be had; a runtime may refuse to give single ones away."""
    try:
        return prober.values(names)
    except VerificationError:
        if len(names) == 1:
            return {}
        half = len(names) // 2
        return {**_values(prober, names[:half]), **_values(prober, names[half:])}

"""Times measured in rounds, and their ratios with an interval that assumes no distribution.

Times on a shared machine have a long tail and drift, so neither means nor normal errors serve. In
each round every variant runs once, in a new order every time: its time over raw's time in the same
round cancels the drift, and the median of these ratios ignores the tail. Two sessions of the very
same file differ by some percent for as long as they live, for instance by where their memory lies:
so everything is opened several times, and each opening is one sample.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing, Verdict
from rmsnorm_export.op.dtypes import Array

Run = Callable[[], object]
Times = list[list[float]]
"""Seconds by opening and round."""

WARM_UP = 3
"""Runs of each before the clock counts: memory arenas grow in the first, caches fill."""

FEWEST, MOST = 20, 2000
"""Rounds where a time is given: the interval is coarse below, and gains nothing above."""

OPENINGS = 9
"""The fewest samples whose 95 % interval excludes an outlier on either side."""

LEAST_DIFFERENCE = 0.01
"""Never called a difference: the openings of one file scatter by as much."""

_PATIENCE = 4
"""How many times as long as measuring the openings may take; a large model is opened once."""


def run_rounds(opens: Sequence[Callable[[], Run]], *, seconds: float, seed: int) -> list[Times]:
    """Return the seconds of every run of every thing.

    A round goes through all of them in a random order, so that none is always first and none
    always follows the same neighbour, whose data are still in the caches.

    Args:
        opens: each opens one thing and returns what to time.
        seconds: how long the rounds take together, as far as ``FEWEST`` and ``MOST`` allow.
        seed: of the orders.
    """
    rng = random.Random(seed)
    start = time.perf_counter()
    runs = _open(opens, rng)
    opening = time.perf_counter() - start
    openings = OPENINGS if OPENINGS * opening <= _PATIENCE * seconds else 1
    times: list[Times] = [[] for _ in opens]
    each = 0
    for i in range(openings):
        if i > 0:
            runs.clear()  # the old sessions are gone before the new ones come
            runs = _open(opens, rng)
        warm = min(sum(_clocked(run) for run in runs) for _ in range(WARM_UP))
        if not each:
            total = max(FEWEST, min(MOST, int(seconds / max(warm, 1e-9))))
            each = -(-total // openings)
        for mine, new in zip(times, _block(runs, each, rng), strict=True):
            mine.append(new)
    return times


def _open(opens: Sequence[Callable[[], Run]], rng: random.Random) -> list[Run]:
    order = rng.sample(range(len(opens)), len(opens))
    opened = {i: opens[i]() for i in order}
    return [opened[i] for i in range(len(opens))]


def _block(runs: Sequence[Run], rounds: int, rng: random.Random) -> Times:
    times: Times = [[] for _ in runs]
    for _ in range(rounds):
        for i in rng.sample(range(len(runs)), len(runs)):
            times[i].append(_clocked(runs[i]))
    return times


def _clocked(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def samples(times: Times, base: Times) -> Array:
    """Return independent ratios of ``times`` to ``base``, paired by round.

    The median of each opening; of a single one, every round.
    """
    ratios = np.array(times) / np.array(base)
    return np.asarray(np.median(ratios, axis=1) if len(ratios) > 1 else ratios[0])


def interval_rank(n: int) -> int:
    """Return k such that the k-th smallest and the k-th largest of n values enclose the median.

    With at least 95 %, whatever the distribution: the number of values below the median is
    binomial(n, 1/2), and k is the largest with P(fewer than k below) <= 2.5 %. 0: no such k.
    """
    below, k = 0, 0
    while True:
        below += math.comb(n, k)  # in integers: 2**n times a probability
        if below * 40 > 2**n:
            return k
        k += 1


def ratio_of(values: Sequence[float] | Array) -> tuple[float, float, float]:
    """Return the median of independent ratios, six at least, and the ends of its 95 % interval."""
    ranked = np.sort(values)
    k = max(1, interval_rank(len(ranked)))
    return float(np.median(ranked)), float(ranked[k - 1]), float(ranked[-k])


def judge(ratio: float, low: float, high: float, floor: float) -> Verdict:
    """Return whether a ratio differs from 1 by more than noise.

    Args:
        ratio, low, high: of a variant to raw, and its interval.
        floor: how far from 1 the interval of a second session of raw itself goes.
    """
    if abs(ratio - 1) <= max(floor, LEAST_DIFFERENCE) or low <= 1 <= high:
        return "no difference beyond noise"
    return "faster" if ratio < 1 else "slower"


def quartiles_ms(seconds: Sequence[float] | Times) -> tuple[float, float, float]:
    """Return the median, the lower and the upper quartile of seconds, in milliseconds."""
    middle, low, high = (np.quantile(seconds, (0.5, 0.25, 0.75)) * 1e3).tolist()
    return middle, low, high


def timings(
    names: Sequence[str], times: Sequence[Times], provider: str, case: str
) -> Iterator[Timing]:
    """Yield times as ratios to those of the first name, judged by those of the second."""
    _, *ends = ratio_of(samples(times[1], times[0]))
    floor = max(LEAST_DIFFERENCE, *(abs(end - 1) for end in ends))
    fixed: dict[str, Verdict] = {RAW: "baseline", AGAIN: "noise floor"}
    for name, mine in zip(names, times, strict=True):
        ratio, rounds = ratio_of(samples(mine, times[0])), np.size(mine)
        measured = (*quartiles_ms(mine), *ratio, floor)
        verdict = fixed.get(name) or judge(*ratio, floor)
        yield Timing(name, provider, case, rounds, len(mine), *measured, verdict)

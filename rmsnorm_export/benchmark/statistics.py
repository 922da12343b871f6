"""Times measured in rounds, and their ratios with an interval that assumes no distribution.

Times on a shared machine have a long tail and drift, so neither means nor normal errors serve. In
each round every variant runs once, in a new order every time: its time over raw's time in the same
round cancels the drift, and the median of these ratios ignores the tail. Two sessions of the very
same file differ by some percent for as long as they live, for instance by where their memory lies:
so everything is opened several times, and each opening is one sample.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from rmsnorm_export.benchmark.result import AGAIN, NO_DIFFERENCE, RAW, Timing, Verdict

Run = Callable[[], object]

WARM_UP = 3
"""Runs of each before the clock counts: memory arenas grow in the first, caches fill."""

FEWEST, MOST = 20, 2000
"""Rounds where a time is given: the interval is coarse below, and gains nothing above."""

OPENINGS = 9
"""The fewest samples whose 95 % interval leaves out an outlier on either side."""

_PATIENCE = 4
"""How many times as long as measuring the openings may take; a large model is opened once."""

Times = list[list[float]]
"""Seconds by opening and round."""


def run_rounds(
    opens: Sequence[Callable[[], Run]], *, seconds: float, rounds: int | None, seed: int
) -> list[Times]:
    """Seconds of every run of every thing.

    A round goes through all of them in a random order, so that none is always first and none
    always follows the same neighbour, whose data are still in the caches.

    Args:
        opens: each opens one thing and returns what to time.
        seconds: how long the rounds take together, as far as ``FEWEST`` and ``MOST`` allow.
        rounds: their number, in place of ``seconds``.
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
            total = rounds or max(FEWEST, min(MOST, int(seconds / max(warm, 1e-9))))
            each = -(-total // openings)
        for mine, new in zip(times, _block(runs, each, rng), strict=True):
            mine.append(new)
    return times


def samples(times: Times, base: Times) -> list[float]:
    """Independent ratios of ``times`` to ``base``, paired by round.

    The median of each opening; of a single one, every round.
    """
    ratios = [
        [mine / its for mine, its in zip(new, old, strict=True)]
        for new, old in zip(times, base, strict=True)
    ]
    return [statistics.median(block) for block in ratios] if len(ratios) > 1 else ratios[0]


def _open(opens: Sequence[Callable[[], Run]], rng: random.Random) -> list[Run]:
    order = list(range(len(opens)))
    rng.shuffle(order)
    opened = {i: opens[i]() for i in order}
    return [opened[i] for i in range(len(opens))]


def _block(runs: Sequence[Run], rounds: int, rng: random.Random) -> Times:
    order = list(range(len(runs)))
    times: Times = [[] for _ in runs]
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            rng.shuffle(order)
            for i in order:
                times[i].append(_clocked(runs[i]))
    finally:
        if enabled:
            gc.enable()
    return times


def _clocked(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


LEAST_ROUNDS = 6
"""Below it not even smallest and largest value enclose the median with 95 %: 1 - 2 / 2**5 < .95."""

LEAST_DIFFERENCE = 0.01
"""What is never called a difference: the openings of one file scatter by as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """Median of ratios and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        """How far from 1 the interval goes."""
        return max(abs(self.low - 1), abs(self.high - 1))


def interval_rank(n: int) -> int:
    """k such that the k-th smallest and the k-th largest of n values enclose the median.

    With at least 95 %, whatever the distribution: the number of values below the median is
    binomial(n, 1/2), and k is the largest with P(fewer than k below) <= 2.5 %. 0: no such k.
    """
    # In integers: 2**n times a probability. From some 1000 rounds on the normal limit is exact
    # enough, and shorter to compute.
    if n > 1000:
        return math.floor((n - 1.96 * math.sqrt(n)) / 2)
    below, k = 0, 0
    while True:
        below += math.comb(n, k)
        if below * 40 > 2**n:
            return k
        k += 1


def ratio_of(samples: Sequence[float]) -> Ratio:
    """The median of independent ratios, ``LEAST_ROUNDS`` at least, with its interval."""
    ranked = sorted(samples)
    k = max(1, interval_rank(len(ranked)))
    return Ratio(statistics.median(ranked), ranked[k - 1], ranked[-k])


def judge(measured: Ratio, floor: float) -> Verdict:
    """Whether a ratio differs from 1 by more than noise.

    Args:
        measured: of a variant to raw.
        floor: ``reach`` of a second session of raw itself.
    """
    if measured.low <= 1 <= measured.high or abs(measured.ratio - 1) <= max(
        floor, LEAST_DIFFERENCE
    ):
        return NO_DIFFERENCE
    return "faster" if measured.ratio < 1 else "slower"


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


def timings(
    names: Sequence[str], times: Sequence[Times], provider: str, case: str
) -> Iterator[Timing]:
    """Times as ratios to those of the first name, judged by those of the second."""
    floor = max(ratio_of(samples(times[1], times[0])).reach, LEAST_DIFFERENCE)
    fixed: dict[str, Verdict] = {RAW: "baseline", AGAIN: "noise floor"}
    for name, mine in zip(names, times, strict=True):
        ratio = ratio_of(samples(mine, times[0]))
        flat = [one for block in mine for one in block]
        low, middle, high = quartiles(flat)
        yield Timing(
            variant=name,
            provider=provider,
            case=case,
            rounds=len(flat),
            openings=len(mine),
            median_ms=middle * 1e3,
            q1_ms=low * 1e3,
            q3_ms=high * 1e3,
            ratio=ratio.ratio,
            low=ratio.low,
            high=ratio.high,
            floor=floor,
            verdict=fixed.get(name) or judge(ratio, floor),
        )

"""Ratios of times measured in rounds, with an interval that assumes no distribution.

Times on a shared machine have a long tail and drift, so neither means nor normal errors serve. In
each round every variant runs once: its time over raw's time in the same round cancels the drift,
and the median of these ratios ignores the tail (see ``rounds`` for what a sample is).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

from rmsnorm_export.benchmark.result import AGAIN, NO_DIFFERENCE, RAW, Timing, Verdict
from rmsnorm_export.benchmark.rounds import Times, samples

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

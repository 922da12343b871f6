"""The interval holds what it promises, a known ratio is found, equal things are called equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing
from rmsnorm_export.benchmark.statistics import (
    OPENINGS,
    Run,
    Times,
    interval_rank,
    judge,
    ratio_of,
    run_rounds,
    samples,
    timings,
)


@pytest.mark.parametrize("n", [6, 7, 9, 10, 20, 49, 100, 1000, 2000])
def test_the_interval_covers_95_percent_and_no_more_than_it_must(n: int) -> None:
    """P(the median lies between the k-th smallest and the k-th largest of n values)."""
    k = interval_rank(n)
    within = [1 - 2 * sum(math.comb(n, i) for i in range(rank)) / 2**n for rank in (k, k + 1)]
    assert k >= 1
    assert within[0] >= 0.95 > within[1]
    assert interval_rank(5) == 0


EQUAL = "no difference beyond noise"


@pytest.mark.parametrize(
    ("ratio", "floor", "verdict"),
    [
        ((0.9, 0.88, 0.92), 0.02, "faster"),
        ((1.1, 1.08, 1.12), 0.02, "slower"),
        ((0.9, 0.88, 0.92), 0.11, EQUAL),
        ((0.9, 0.80, 1.01), 0.02, EQUAL),
        ((0.995, 0.994, 0.996), 0.0, EQUAL),
    ],
)
def test_the_verdict(ratio: tuple[float, float, float], floor: float, verdict: str) -> None:
    assert judge(*ratio, floor) == verdict
    assert ratio_of([0.9, 1.3, 1.0, 1.1, 1.2, 0.8, 5.0, 1.05, 0.1]) == (1.05, 0.8, 1.3)


def _judged(rng: np.random.Generator, factor: float, openings: int) -> Timing:
    """Of times with drift, a long tail, and sessions that differ by 1 % as long as they live."""
    rounds, times = 12 if openings > 1 else 60, list[Times]([[], [], []])
    for _ in range(openings):
        drift = np.exp(np.cumsum(rng.normal(0, 0.02, rounds)))
        for mine, scale in zip(times, (1.0, 1.0, factor), strict=True):
            session = rng.normal(1, 0.01 if openings > 1 else 0.0)
            tail = rng.lognormal(0, 0.05, rounds) + (rng.random(rounds) < 0.05) * 2.0
            mine.append(list(scale * session * drift * tail))
    return list(timings([RAW, AGAIN, "other"], times, "cpu", "x"))[2]


@pytest.mark.parametrize("openings", [1, OPENINGS])
def test_known_ratios_are_found_and_equal_times_called_equal(openings: int) -> None:
    rng = np.random.default_rng(0)
    same = [_judged(rng, 1.0, openings).verdict for _ in range(300)]
    assert same.count(EQUAL) >= 0.93 * 300
    for factor, verdict in ((0.8, "faster"), (1.25, "slower")):
        judged = [_judged(rng, factor, openings) for _ in range(100)]
        assert sum(t.verdict == verdict for t in judged) >= 95
        assert sum(t.low <= factor <= t.high for t in judged) >= 90
        assert float(np.median([t.ratio for t in judged])) == pytest.approx(factor, rel=0.01)


def test_a_sample_is_an_opening_or_a_round() -> None:
    two = samples([[2.0, 4.0, 9.0], [3.0, 3.0, 3.0]], [[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]])
    assert two.tolist() == [4, 3]
    assert samples([[2.0, 4.0]], [[1.0, 2.0]]).tolist() == [2.0, 2.0]


def test_everything_runs_once_per_round_and_is_opened_anew() -> None:
    opened: list[int] = []
    calls: list[int] = []

    def opener(i: int) -> Callable[[], Run]:
        return lambda: opened.append(i) or (lambda: calls.append(i))

    times = run_rounds([opener(i) for i in range(3)], seconds=1e-3, seed=0)
    assert [len(mine) for mine in times] == [OPENINGS] * 3
    assert len({len(block) for mine in times for block in mine}) == 1
    assert sorted(opened) == sorted([0, 1, 2] * OPENINGS)
    assert len({tuple(opened[i : i + 3]) for i in range(0, len(opened), 3)}) > 1
    in_turn = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in in_turn)


def test_what_takes_long_to_open_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    times = run_rounds([lambda: lambda: None] * 2, seconds=1e-3, seed=0)
    assert [(len(mine), len(mine[0])) for mine in times] == [(1, 20)] * 2

"""The interval holds what it promises, a known ratio is found, equal things are called equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing
from rmsnorm_export.benchmark.statistics import (
    LEAST_ROUNDS,
    OPENINGS,
    Ratio,
    Run,
    Times,
    interval_rank,
    judge,
    ratio_of,
    run_rounds,
    samples,
    timings,
)


def _coverage(n: int, k: int) -> float:
    """P(the median lies between the k-th smallest and the k-th largest of n values)."""
    return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n


@pytest.mark.parametrize("n", [6, 7, 9, 10, 20, 49, 100, 999, 1000])
def test_the_interval_covers_95_percent_and_no_more_than_it_must(n: int) -> None:
    k = interval_rank(n)
    assert k >= 1
    assert _coverage(n, k) >= 0.95
    assert _coverage(n, k + 1) < 0.95


def test_the_limits_of_small_and_large_numbers() -> None:
    assert interval_rank(LEAST_ROUNDS) == 1
    assert interval_rank(LEAST_ROUNDS - 1) == 0
    assert interval_rank(OPENINGS) == 2
    assert abs(interval_rank(1000) - interval_rank(1001)) <= 1


def test_the_interval_of_known_values() -> None:
    found = ratio_of([0.9, 1.3, 1.0, 1.1, 1.2, 0.8, 5.0, 1.05, 0.1])
    assert found == Ratio(1.05, 0.8, 1.3)
    assert found.reach == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "floor", "verdict"),
    [
        (0.9, 0.88, 0.92, 0.02, "faster"),
        (1.1, 1.08, 1.12, 0.02, "slower"),
        (0.9, 0.88, 0.92, 0.11, "no difference beyond noise"),
        (0.9, 0.80, 1.01, 0.02, "no difference beyond noise"),
        (0.995, 0.994, 0.996, 0.0, "no difference beyond noise"),
    ],
)
def test_the_verdict(ratio: float, low: float, high: float, floor: float, verdict: str) -> None:
    assert judge(Ratio(ratio, low, high), floor) == verdict


def _synthetic(rng: np.random.Generator, factors: list[float], openings: int) -> list[Times]:
    """Times with drift, a long tail, and sessions that differ by 1 % for as long as they live."""
    rounds = 12 if openings > 1 else 60
    found: list[Times] = [[] for _ in factors]
    for _ in range(openings):
        drift = np.exp(np.cumsum(rng.normal(0, 0.02, rounds)))
        for mine, factor in zip(found, factors, strict=True):
            session = rng.normal(1, 0.01 if openings > 1 else 0.0)
            tail = rng.lognormal(0, 0.05, rounds) + (rng.random(rounds) < 0.05) * 2.0
            mine.append(list(factor * session * drift * tail))
    return found


def _judged(rng: np.random.Generator, factor: float, openings: int) -> Timing:
    times = _synthetic(rng, [1.0, 1.0, factor], openings)
    return list(timings([RAW, AGAIN, "other"], times, "cpu", "x"))[2]


@pytest.mark.parametrize("openings", [1, OPENINGS])
def test_equal_distributions_are_called_equal(openings: int) -> None:
    rng = np.random.default_rng(0)
    same = sum(
        _judged(rng, 1.0, openings).verdict == "no difference beyond noise" for _ in range(300)
    )
    assert same >= 0.93 * 300


@pytest.mark.parametrize("openings", [1, OPENINGS])
@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "faster"), (1.25, "slower")])
def test_a_known_ratio_is_found(openings: int, factor: float, verdict: str) -> None:
    rng = np.random.default_rng(1)
    found = [_judged(rng, factor, openings) for _ in range(100)]
    assert sum(t.verdict == verdict for t in found) >= 95
    assert sum(t.low <= factor <= t.high for t in found) >= 90
    assert float(np.median([t.ratio for t in found])) == pytest.approx(factor, rel=0.01)


def test_a_sample_is_an_opening_or_a_round() -> None:
    assert samples([[2.0, 4.0, 9.0], [3.0, 3.0, 3.0]], [[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]]) == [4, 3]
    assert samples([[2.0, 4.0]], [[1.0, 2.0]]) == [2.0, 2.0]


@pytest.mark.parametrize(("rounds", "each"), [(90, 10), (91, 11), (6, 1)])
def test_everything_runs_once_per_round_and_is_opened_anew(rounds: int, each: int) -> None:
    opened: list[int] = []
    calls: list[int] = []

    def opener(i: int) -> Callable[[], Run]:
        def open_() -> Run:
            opened.append(i)
            return lambda: calls.append(i)

        return open_

    times = run_rounds([opener(i) for i in range(3)], seconds=60, rounds=rounds, seed=0)
    assert [len(mine) for mine in times] == [OPENINGS] * 3
    assert {len(block) for mine in times for block in mine} == {each}
    assert sorted(opened) == sorted([0, 1, 2] * OPENINGS)
    assert len({tuple(opened[i : i + 3]) for i in range(0, len(opened), 3)}) > 1
    in_turn = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in in_turn)


def test_what_takes_long_to_open_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    times = run_rounds([lambda: lambda: None] * 2, seconds=1e-3, rounds=None, seed=0)
    assert [len(mine) for mine in times] == [1, 1]
    assert len(times[0][0]) == 20

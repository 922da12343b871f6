"""Samples taken in turn, so that what slows the machine meets all contenders alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

Run = Callable[[], object]
"""Compute the outputs once, and return when they are there."""

Clock = Callable[[], float]


def seconds_of(run: Run, times: int = 1, clock: Clock = time.perf_counter) -> float:
    """Seconds of one call, on average over ``times`` calls."""
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def interleaved(samplers: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Return samples of each sampler, one a round.

    A round goes through all of them in a new order, so that none is always first and none always
    follows the same neighbour.
    """
    rng, order = random.Random(0), list(range(len(samplers)))
    samples: list[list[float]] = [[] for _ in samplers]
    for _ in range(rounds):
        rng.shuffle(order)
        for index in order:
            samples[index].append(samplers[index]())
    return samples


def samples(
    runs: dict[str, Run], rounds: int, least: float, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Interleaved samples of each function, in seconds per call; a sample takes ``least``."""

    def sampler(run: Run) -> Callable[[], float]:
        seconds_of(run, 3, clock)
        times = max(1, round(least / max(seconds_of(run, 5, clock), 1e-9)))
        return lambda: seconds_of(run, times, clock)

    return dict(zip(runs, interleaved([*map(sampler, runs.values())], rounds), strict=True))

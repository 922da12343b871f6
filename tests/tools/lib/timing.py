"""Samples taken in turn, so that what slows the machine meets all contenders alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

Run = Callable[[], object]
Clock = Callable[[], float]
"""Computes its outputs once, and returns when they are there."""


def seconds_of(run: Run, times: int = 1, clock: Clock = time.perf_counter) -> float:
    """Seconds of one call, on average over ``times`` calls."""
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def interleaved(
    samplers: Sequence[Callable[[], float]], rounds: int, *, seed: int = 0
) -> list[list[float]]:
    """Samples of each sampler, one a round.

    A round goes through all of them in a new order, so that none is always first and none always
    follows the same neighbour.
    """
    rng, order = random.Random(seed), list(range(len(samplers)))
    samples: list[list[float]] = [[] for _ in samplers]
    for _ in range(rounds):
        rng.shuffle(order)
        for index in order:
            samples[index].append(samplers[index]())
    return samples

"""Samples taken in turn, so that what slows the machine meets all contenders alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

Run = Callable[[], object]
"""Compute the outputs once, and return when they are there."""

Clock = Callable[[], float]


def _seconds(run: Run, times: int, clock: Clock) -> float:
    """Return seconds of a call, on average over so many."""
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def samples(
    runs: dict[str, Run], rounds: int, least: float, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Return samples of each function, one a round, in seconds per call; one takes ``least``.

    With ``least`` 0 a sample is one call.

    A round goes through all of them in a new order, so that none is always first and none always
    follows the same neighbour.
    """
    times = {}
    for name, run in runs.items():
        _seconds(run, 1, clock)
        times[name] = max(1, round(least / max(_seconds(run, 3, clock), 1e-9)))
    rng, order = random.Random(0), [*runs]
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            taken[name].append(_seconds(runs[name], times[name], clock))
    return taken

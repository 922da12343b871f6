"""Run things in rounds, each once per round, in a new order every time.

Two sessions of the very same file differ by some percent for as long as they live, for instance by
where their memory lies. So everything is opened several times, and each opening is one sample.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence

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

"""Outputs and honest timings, of ONNX files in ONNX Runtime on the CPU and of other runs.

Samples are taken in turn, so that what slows the machine meets all contenders alike.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing
from rmsnorm_export.benchmark.statistics import run_rounds, timings
from rmsnorm_export.errors import Error
from rmsnorm_export.runtime.session import load_session
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library
from toolbox.command import say

Run = Callable[[], object]
"""Compute the outputs once, and return when they are there."""

Clock = Callable[[], float]


def our_kernels() -> Path | None:
    """Return the library of our CPU kernels; None where it is not built, and that is said."""
    try:
        return onnxruntime_library()
    except Error as error:
        say(str(error))
        return None


def opened(path: Path, tokens: np.ndarray, *, optimize: bool = True) -> Callable[[], Any]:
    """Return a run of a model on tokens, in a session of its own."""
    session = load_session(path, optimize=optimize)
    return functools.partial(session.run, None, {session.get_inputs()[0].name: tokens})


def worst_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a - b| over the largest |b|; NaN or inf anywhere makes it infinite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare_speed(
    source: Path, others: Sequence[Path], tokens: np.ndarray, *, seconds: float
) -> list[Timing]:
    """Time ``others`` against ``source`` for so many seconds, as ``rmsnorm-export bench`` does.

    All sessions have ONNX Runtime's default graph optimization, as a user would run them. The
    source is opened twice: the ratio of those two is what a difference has to exceed.
    """
    opens = [functools.partial(opened, path, tokens) for path in (source, source, *others)]
    names = (RAW, AGAIN, *map(str, others))
    return [*timings(names, run_rounds(opens, seconds=seconds, seed=0), "cpu", "")][2:]


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

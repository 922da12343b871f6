"""Logits and honest timings of ONNX files in ONNX Runtime on the CPU."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime


def session(path: Path, *, optimize: bool = True) -> onnxruntime.InferenceSession:
    """A CPU session; ``optimize=False`` computes exactly the nodes of the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Idle threads of one session would otherwise spin on the core that another one needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def logits(path: Path, tokens: np.ndarray, *, optimize: bool) -> np.ndarray:
    """The first output of the model."""
    model = session(path, optimize=optimize)
    result: np.ndarray = model.run(None, {model.get_inputs()[0].name: tokens})[0]
    return result


def worst_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a - b| over the largest |b|; NaN or inf anywhere makes it infinite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    return float(np.abs(a - b).max() / np.abs(b).max())


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """Time of one model over the time of the source.

    Attributes:
        ratio: median over the rounds of (its time / the source's time in the same round).
        low, high: 95 % confidence interval of that median.
        beyond_noise: the interval excludes 1, and the ratio is further from 1 than either end of
            the interval for a second session of the very same source file.
    """

    ratio: float
    low: float
    high: float
    beyond_noise: bool


def _median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its distribution-free 95 % interval, from the order statistics (binomial 1/2)."""
    ranked = sorted(values)
    n = len(ranked)
    # Normal approximation of the binomial ranks; good from some 20 rounds on.
    reach = 1.96 * math.sqrt(n) / 2
    low, high = math.floor(n / 2 - reach), math.ceil(n / 2 + reach)
    return statistics.median(ranked), ranked[max(low, 0)], ranked[min(high, n - 1)]


def compare_speed(
    source: Path, others: Sequence[Path], tokens: np.ndarray, *, seconds: float
) -> list[Speed]:
    """Time ``others`` against ``source`` in interleaved rounds for about ``seconds`` in all.

    All sessions have ONNX Runtime's default graph optimization, as a user would run them. The
    source is opened twice: the ratio of those two is what a difference has to exceed.
    """
    sessions = [session(path) for path in (source, source, *others)]
    feeds = [{model.get_inputs()[0].name: tokens} for model in sessions]

    def once(i: int) -> float:
        start = time.perf_counter()
        sessions[i].run(None, feeds[i])
        return time.perf_counter() - start

    everything = range(len(sessions))
    warm = sum(once(i) for _ in range(2) for i in everything) / 2
    rounds = max(20, min(400, int(seconds / warm)))
    times: list[list[float]] = [[] for _ in everything]
    for round_ in range(rounds):
        # A different one starts each round, so that none always runs after the same neighbour.
        for step in everything:
            i = (round_ + step) % len(sessions)
            times[i].append(once(i))
    ratios = [
        _median_interval([mine / base for mine, base in zip(times[i], times[0], strict=True)])
        for i in everything
    ]
    floor = max(abs(end - 1) for end in ratios[1])
    return [
        Speed(ratio, low, high, (low > 1 or high < 1) and abs(ratio - 1) > floor)
        for ratio, low, high in ratios[2:]
    ]

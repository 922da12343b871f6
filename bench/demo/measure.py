"""Logits and honest timings of ONNX files in ONNX Runtime on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.lib.timing import interleaved, seconds_of
from rmsnorm_export.benchmark.statistics import judge, ratio_of
from rmsnorm_export.runtime.session import load_session


def logits(path: Path, tokens: np.ndarray, *, optimize: bool) -> np.ndarray:
    """The first output of the model."""
    model = load_session(path, optimize=optimize)
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
        beyond_noise: as ``rmsnorm-export bench`` has it: the interval excludes 1, and the ratio is
            further from 1 than a hundredth and than either end of the interval for a second session
            of the very same source file.
    """

    ratio: float
    low: float
    high: float
    beyond_noise: bool


def compare_speed(
    source: Path, others: Sequence[Path], tokens: np.ndarray, *, seconds: float
) -> list[Speed]:
    """Time ``others`` against ``source`` in interleaved rounds for about ``seconds`` in all.

    All sessions have ONNX Runtime's default graph optimization, as a user would run them. The
    source is opened twice: the ratio of those two is what a difference has to exceed.
    """
    sessions = [load_session(path, optimize=True) for path in (source, source, *others)]
    runs = [
        functools.partial(model.run, None, {model.get_inputs()[0].name: tokens})
        for model in sessions
    ]
    samplers = [functools.partial(seconds_of, run) for run in runs]
    warm = sum(map(sum, interleaved(samplers, 2))) / 2
    times = interleaved(samplers, max(20, min(400, int(seconds / warm))))
    ratios = [
        ratio_of([mine / base for mine, base in zip(each, times[0], strict=True)]) for each in times
    ]
    floor = max(abs(end - 1) for end in ratios[1][1:])
    return [Speed(*one, judge(*one, floor) in ("faster", "slower")) for one in ratios[2:]]

"""Logits and honest timings of ONNX files in ONNX Runtime on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing
from rmsnorm_export.benchmark.statistics import run_rounds, timings
from rmsnorm_export.runtime.session import load_session


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

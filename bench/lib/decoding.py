"""Graphs of any exporter of a decoder, run alone on one thread: what they say of a text, and when.

A time is that of the thread, so that other programs cost little, in sessions that are opened anew
each round: where weights lie in memory makes a graph faster or slower by more than its nodes do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.measure import Run, samples
from rmsnorm_export.runtime.session import load_session


def inputs(session: Any, past: int, tokens: int, heads: Sequence[int]) -> dict[str, Any]:
    """Return inputs of one row: some tokens after some that are cached.

    Args:
        session: of a graph.
        past, tokens: how many.
        heads: how many there are in a cache, and their width.
    """
    generator, feeds = np.random.default_rng(0), {}
    cache = (1, heads[0], past, heads[1])
    floats = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    for value in session.get_inputs():
        shape = _shape(value, past, tokens, cache)
        if dtype := floats.get(value.type):
            feeds[value.name] = generator.standard_normal(shape).astype(dtype)
        elif value.type == "tensor(bool)":  # of a cache of fixed size
            places, rows = np.arange(shape[-1]), past + np.arange(shape[-2])
            feeds[value.name] = np.broadcast_to(places <= rows[:, None], shape).copy()
        elif "position" in value.name and shape:
            feeds[value.name] = np.arange(past, past + tokens).reshape(1, -1)
        else:
            feeds[value.name] = np.full(shape, 1 if shape else past, np.int64)
    return feeds


def _shape(value: Any, past: int, tokens: int, cache: Sequence[int]) -> list[int]:
    """Return the shape of an input: exporters have different names for symbolic sizes."""
    is_mask = "mask" in value.name
    wide = (1, 1, tokens, past + tokens) if is_mask else cache
    symbolic = {4: wide, 2: (1, past + tokens if is_mask else tokens)}.get(len(value.shape), ())
    pairs = zip(value.shape, symbolic, strict=False)
    return [size if isinstance(size, int) else other for size, other in pairs]


def logits_of(path: Path, ids: Any, heads: Sequence[int]) -> Any:
    """Return the logits of a text, [1, tokens, vocabulary].

    Those of a graph that gives the last one alone are [1, 1, vocabulary].
    """
    session = load_session(path, optimize=True, threads=1)
    feeds = inputs(session, 0, ids.shape[1], heads) | {"input_ids": ids}
    return session.run(["logits"], feeds)[0]


def timed(
    paths: dict[str, Path], repeats: int, past: int, tokens: int, heads: Sequence[int]
) -> dict[str, Any]:
    """Return the seconds of this thread for each run of graphs, in turn, in new sessions."""
    runs: dict[str, Run] = {}
    for label, path in paths.items():
        session = load_session(path, optimize=True, threads=1)
        feeds = inputs(session, past, tokens, heads)
        runs[label] = functools.partial(session.run, None, feeds)
    taken = samples(runs, repeats, least=0.0, clock=time.thread_time)
    return {label: np.array(seconds) for label, seconds in taken.items()}

"""Times of GPU work from CUDA graphs and events; medians of interleaved replays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from rmsnorm_export.benchmark.statistics import quartiles
from tests.tools.lib.timing import interleaved

Call = Callable[[int], object]
"""Runs the work once on the buffers of this number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median over the replays of a graph, and the quartiles.

    Attributes:
        graph: the calls were replayed from a CUDA graph; False: launched one by one, because the
            contender could not be captured.
    """

    median: float
    low: float
    high: float
    graph: bool


class Repeated:
    """Some calls of one contender as one unit that can be timed again and again."""

    def __init__(self, call: Call, sets: int, calls: int) -> None:
        """``calls`` calls, which go round the first ``sets`` sets of buffers.

        Few launches say little on their own, and a gap between graph replays is no part of a
        call: hence several calls in one graph.
        """
        self._numbers = [index % sets for index in range(calls)]
        self._call = call
        self._graph: torch.cuda.CUDAGraph | None = None
        for number in range(min(sets, 3)):
            call(number)  # compilation and set-up stay out of the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._all()
        except RuntimeError:
            torch.cuda.synchronize()
            return
        self._graph = graph
        graph.replay()
        torch.cuda.synchronize()

    @property
    def captured(self) -> bool:
        return self._graph is not None

    def _all(self) -> None:
        for number in self._numbers:
            self._call(number)

    def seconds(self) -> float:
        """One sample: seconds of one call."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if self._graph is None:
            self._all()
        else:
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / len(self._numbers)


def timings(contenders: Sequence[Repeated], rounds: int) -> list[Timing]:
    """Of all, sampled in turn after one run of each."""
    samplers = [contender.seconds for contender in contenders]
    interleaved(samplers, 1)
    found = []
    for contender, values in zip(contenders, interleaved(samplers, rounds), strict=True):
        low, median, high = quartiles(values)
        found.append(Timing(median, low, high, contender.captured))
    return found


def copy_rate(bytes_each: int = 2 << 30, rounds: int = 15) -> float:
    """Bytes read and written per second by a device-to-device copy: the ceiling of a norm."""
    source = torch.empty(bytes_each, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    timing = timings([Repeated(lambda _: target.copy_(source), 1, 4)], rounds)[0]
    return 2 * bytes_each / timing.median

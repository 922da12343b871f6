"""Progress of a build: the builder's phases, which contain each other, as one fraction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

TOTAL = 100
"""Progress is told in per cent."""


class Phases:
    """The phases that are under way, each with its parent, its steps and those done."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str | None, int, int]] = {}
        self._best = 0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase begins."""
        self._open[name] = (parent, max(steps, 1), 0)

    def step(self, name: str, step: int) -> None:
        """Step ``step`` of a phase, counted from 0, is over."""
        if name in self._open:
            parent, steps, done = self._open[name]
            self._open[name] = (parent, steps, min(max(done, step + 1), steps))

    def finish(self, name: str) -> None:
        """A phase is over."""
        self._open.pop(name, None)

    def done(self) -> int:
        """How much is over, in ``TOTAL`` steps; never less than said before.

        A phase inside another counts as a part of the step that the other is at.
        """
        best = max(map(self._fraction, self._open), default=0.0)
        self._best = max(self._best, min(TOTAL, int(best * TOTAL)))
        return self._best

    def _fraction(self, name: str) -> float:
        _, steps, done = self._open[name]
        fraction, seen = done / steps, {name}
        parent = self._open[name][0]
        while parent in self._open and parent not in seen:
            seen.add(parent)
            above, steps, done = self._open[parent]
            fraction = min(1.0, (done + fraction) / steps)
            parent = above
        return fraction


def make_monitor(trt: Any, say: Callable[..., None]) -> Any:
    """An ``IProgressMonitor`` that tells ``say`` of every change worth showing.

    The builder calls it from several threads.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._phases = Phases()
            self._lock = threading.Lock()
            self._told = (-1, "")

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._phases.start(phase_name, parent_phase, num_steps)
                self._tell(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._phases.finish(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                self._phases.step(phase_name, step)
                self._tell(phase_name)
            return True

        def _tell(self, phase: str) -> None:
            now = (self._phases.done(), phase)
            if now[0] != self._told[0]:
                self._told = now
                say("progress", phase=phase, done=now[0], total=TOTAL)

    return Monitor()

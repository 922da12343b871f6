"""The steps of a check on a GPU, each in a process with a limit of time, and what they report.

What a step has found is written before the next one begins, and so is that it did not end in time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.lib.results import Start, publish
from toolbox.command import say

PACKAGES = ("triton", "liger-kernel", "quack-kernels")
_LISTS = ("seen", "checked", "wrong", "not run", "rows", "steps")
_SECONDS = 10
"""Between two writes while rows come."""

Tell = Callable[[str, Any], None]
"""Called with a section of the report and a line for it, or with ``rows`` and one."""


@dataclasses.dataclass
class Report:
    """What was done on a device.

    Attributes:
        folder: of the JSON file and its page.
        name: of these, and of the page's template.
        device: that it was done on.
        tables: of rows makes what the template shows of them.
        facts: lines under ``seen``, ``checked``, ``wrong`` and ``not run``; ``rows`` that were
            measured; the ``steps`` that are done.
    """

    folder: Path
    name: str
    device: str
    tables: Callable[[list[dict[str, Any]]], dict[str, Any]]
    facts: dict[str, Any] = dataclasses.field(default_factory=lambda: {name: [] for name in _LISTS})
    start: Start = dataclasses.field(default_factory=Start)
    written: float = 0.0

    def tell(self, name: str, value: Any) -> None:
        """Add a line to a section, or a row."""
        self.facts[name].append(value)
        if time.monotonic() > self.written + _SECONDS:
            self.write()

    def write(self) -> str:
        """Write what there is; return the page."""
        self.facts |= self.start.facts(*PACKAGES) | {"device": self.device}
        self.written = time.monotonic()
        shown = self.tables(self.facts["rows"])
        path = self.folder / f"{self.name}.json"
        return publish(self.name, self.facts, path, sections=self.facts, **shown)


@dataclasses.dataclass(frozen=True)
class Step:
    """A part of a check, of so many seconds at most.

    ``run(tell, end)`` is in a process of its own, and begins nothing after ``end`` of the monotonic
    clock.
    """

    name: str
    seconds: float
    run: Callable[[Tell, float], None]


def _child(step: Step, end: float, lines: Connection) -> None:
    os.setsid()  # so that what it starts ends with it
    try:
        step.run(lambda name, value: lines.send((name, value)), end)
    except Exception as error:
        lines.send(("wrong", f"{step.name}: {type(error).__name__}: {str(error)[:300]}"))


def within(step: Step, seconds: float, tell: Tell) -> None:
    """Run a step in a new process; what does not end in time is killed with all that it started."""
    context = multiprocessing.get_context("forkserver")  # whose one process imports PyTorch once
    context.set_forkserver_preload(["bench.gpu.speed"])
    lines, to_lines = context.Pipe(duplex=False)
    end = time.monotonic() + seconds
    process = context.Process(target=_child, args=(step, end - 0.2 * seconds, to_lines))
    process.start()
    to_lines.close()
    try:
        while lines.poll(max(0.0, end - time.monotonic())):
            tell(*lines.recv())
        tell("wrong", f"{step.name}: not done after {seconds:.0f} s")
        with contextlib.suppress(ProcessLookupError):  # it ends just now
            os.killpg(process.pid or 0, signal.SIGKILL)
    except EOFError:  # it has written all
        process.join()
        if process.exitcode:
            tell("wrong", f"{step.name}: the process ended with {process.exitcode}")


def run(steps: Iterable[Step], report: Report, *, minutes: float) -> None:
    """Run every step that has time left; ``report`` is written after each."""
    end = time.monotonic() + 60 * minutes
    for step in steps:
        begun = time.monotonic()
        seconds = min(step.seconds, end - begun)
        if seconds < 1:
            report.tell("not run", f"{step.name}: the time is over")
            continue
        within(step, seconds, report.tell)
        report.facts["steps"].append(step.name)
        say(f"{step.name}: {time.monotonic() - begun:.0f} s")
        report.write()

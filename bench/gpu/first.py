"""The first minutes on a GPU: whatever may fail there fails early, in a process with a time limit.

What a step has found is written before the next one begins, and so is that it did not end in time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.gpu import correct, directed, sanitize, speed, streams
from bench.gpu.machine import Built, Machine
from bench.gpu.report import Report
from toolbox.command import say
from toolbox.driver import Driver

Tell = Callable[[str, Any], None]
"""Called with a name of the report and a line for it, or the rows and rate of the speed."""

PEERS = ("torch fused",)


@dataclasses.dataclass(frozen=True)
class Step:
    """A part of the check, run in a process of its own: ``run(machine, built, tell)``."""

    name: str
    seconds: float
    run: Callable[[Machine, Built, Tell], None]


def _device(machine: Machine, built: Built, tell: Tell) -> None:
    """Copy rate; which kernel, how many blocks of an SM, or clusters, at once."""
    tell("copy_bytes_per_second", machine.copy_rate())
    driver = Driver(built.driver)
    for _, job in directed.problems("clusters", machine.checked):
        outcome = driver.run(job)
        what = "clusters" if outcome.cluster > 1 else "blocks of an SM"
        at_once = f"{outcome.at_once} {what} at once" if outcome.queries else "known from before"
        threads = f"{outcome.blocks} blocks of {outcome.threads}, clusters of {outcome.cluster}"
        tell("seen", f"{job.x.shape[1]}: {outcome.family}, {threads}, {at_once}")
    driver.finish()


def _judged(name: str, outcome: correct.Correctness, tell: Tell) -> None:
    tell("checked", f"{name}: {outcome.line()}")
    for text in outcome.wrong:
        tell("wrong", f"{name}: {text}")


def _directed(group: str, machine: Machine, built: Built, tell: Tell) -> None:
    problems = directed.problems(group, machine.checked)
    _judged(group, correct.run([built.driver], problems, tell=say), tell)


def _sanitized(tool: str, seconds: float, machine: Machine, built: Built, tell: Tell) -> None:
    """One problem of each cluster, then random ones, until most of the time is over."""
    end = time.monotonic() + 0.7 * seconds
    jobs = directed.problems("clusters", machine.checked)
    jobs += correct.drawn(1, machine.sanitized, few=True)
    _judged(tool, sanitize.run(machine, tool, built.driver, jobs, tell=say, end=end), tell)


def _launched(check: str, machine: Machine, built: Built, tell: Tell) -> None:
    wrong = streams.CHECKS[check](built.library, machine)
    tell("checked", f"{check}: {len(wrong)} wrong")
    for text in wrong:
        tell("wrong", f"{check}: {text}")


def _timed(seconds: float, machine: Machine, built: Built, tell: Tell) -> None:
    works = [
        speed.Work(op, max(8, machine.largest // n), n, "bfloat16")
        for n in (256, 4096, 16384, 65536)
        for op in ("norm", "skip")
    ]
    end = time.monotonic() + 0.8 * seconds
    options: dict[str, Any] = {"works": works, "peers": PEERS, "tell": say, "seed": 1, "end": end}
    tell("rows", speed.run(built.library, machine, **options))


def _profiled(machine: Machine, built: Built, tell: Tell) -> None:
    """Rows of 64, 16,384 and 65,536 elements."""
    program = machine.program("ncu")
    if program is None:
        tell("not run", "ncu is neither in CUDA_HOME nor on PATH")
        return
    jobs = directed.problems("clusters", machine.checked)[:5:2]
    log = str(machine.logs / "ncu.csv")
    options = ["--csv", "--set", "full", "--clock-control", "none", "--log-file", log]
    _judged("ncu", correct.run([program, *options, built.driver], jobs, tell=say), tell)


def steps() -> list[Step]:
    """Return them in order, with the seconds that each may take."""
    return [
        Step("device", 60, _device),
        *(Step(name, 20, functools.partial(_directed, name)) for name in directed.GROUPS),
        *(Step(tool, 40, functools.partial(_sanitized, tool, 40)) for tool in sanitize.TOOLS),
        *(Step(name, 20, functools.partial(_launched, name)) for name in streams.CHECKS),
        Step("speed", 100, functools.partial(_timed, 100)),
        Step("ncu", 60, _profiled),
    ]


def _child(step: Step, machine: Machine, built: Built, lines: Connection) -> None:
    os.setsid()  # so that what it starts ends with it
    try:
        step.run(machine, built, lambda name, value: lines.send((name, value)))
    except Exception as error:
        lines.send(("wrong", f"{step.name}: {type(error).__name__}: {error}"))


def _within(step: Step, seconds: float, machine: Machine, built: Built, tell: Tell) -> None:
    """Run a step in a new process; what does not end in time is killed with all that it started."""
    context = multiprocessing.get_context("forkserver")  # whose one process imports PyTorch once
    context.set_forkserver_preload([__name__])
    lines, to_lines = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(step, machine, built, to_lines))
    process.start()
    to_lines.close()
    end = time.monotonic() + seconds
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


def run(machine: Machine, built: Built, report: Report, *, minutes: float) -> None:
    """Run every step that has time left; ``report`` is written after each."""
    end = time.monotonic() + 60 * minutes

    def tell(name: str, value: Any) -> None:
        if name in ("rows", "copy_bytes_per_second"):
            report.facts[name] = value
        else:
            report.facts[name].append(value)

    for step in steps():
        if step.name in report.facts["steps"]:
            continue
        seconds = min(step.seconds, end - time.monotonic())
        if seconds < 1:
            tell("not run", f"{step.name}: the time is over")
            continue
        begun = time.monotonic()
        _within(step, seconds, machine, built, tell)
        say(f"{step.name}: {time.monotonic() - begun:.0f} s")
        say(report.done(step.name))

"""The CUDA kernels on a GPU, what may fail early first:

device    the rate of a copy; which kernel a row gets, how many blocks or clusters run at once
clusters, codes, two contexts, rotary
          problems chosen for what random ones seldom have, with poisoned outputs, each against the
          operator with every declared rounding
memcheck, racecheck, synccheck
          some of them under compute-sanitizer
capture first, a chain, another stream
          launches as frameworks make them
random    problems of every kind, type and length
speed     time and memory rate, beside PyTorch's fused norm, Liger and quack, where these are there
"""

from __future__ import annotations

import functools
from typing import Any

from bench.gpu import correct, directed, speed, streams
from bench.gpu.machine import Built, Machine
from bench.gpu.steps import Step, Tell
from toolbox.driver import Driver


def _device(machine: Machine, built: Built, tell: Tell, end: float) -> None:  # noqa: ARG001
    tell("seen", f"a copy moves {machine.copy_rate() / 1e9:,.0f} GB/s, read and written")
    driver = Driver(built.driver)
    for _, job in directed.problems("clusters", machine.checked):
        outcome = driver.run(job)
        what = "clusters" if outcome.cluster > 1 else "blocks of an SM"
        at_once = f"{outcome.at_once} {what} at once" if outcome.queries else "known from before"
        threads = f"{outcome.blocks} blocks of {outcome.threads}, clusters of {outcome.cluster}"
        tell("seen", f"{job.x.shape[1]}: {outcome.family}, {threads}, {at_once}")
    driver.finish()


def _told(name: str, outcome: correct.Correctness, tell: Tell) -> None:
    tell("checked", f"{name}: {outcome.line()}")
    for text in outcome.wrong:
        tell("wrong", f"{name}: {text}")


def _directed(group: str, machine: Machine, built: Built, tell: Tell, end: float) -> None:
    problems = directed.problems(group, machine.checked)
    _told(group, correct.run([built.driver], problems, end=end), tell)


def _random(machine: Machine, built: Built, tell: Tell, end: float) -> None:
    problems = correct.drawn(machine.seed, machine.problems)
    _told(f"seed {machine.seed}", correct.run([built.driver], problems, end=end), tell)


def _sanitized(tool: str, machine: Machine, built: Built, tell: Tell, end: float) -> None:
    """One problem of each cluster, then random ones."""
    jobs = directed.problems("clusters", machine.checked)
    jobs += correct.drawn(machine.seed, machine.sanitized, few=True)
    _told(tool, correct.sanitized(machine, tool, built.driver, jobs, end=end), tell)


def _launched(check: str, machine: Machine, built: Built, tell: Tell, end: float) -> None:  # noqa: ARG001
    wrong = streams.CHECKS[check](built.library, machine)
    tell("checked", f"{check}: {len(wrong)} wrong")
    for text in wrong:
        tell("wrong", f"{check}: {text}")


def steps(machine: Machine, built: Built) -> list[Step]:
    """Return them in order, with the seconds that each may take."""

    def step(name: str, seconds: float, run: Any, *more: object) -> Step:
        return Step(name, seconds, functools.partial(run, *more, machine, built))

    return [
        step("device", 60, _device),
        *(step(name, 30, _directed, name) for name in directed.GROUPS),
        *(step(tool, 50, _sanitized, tool) for tool in correct.SANITIZERS),
        *(step(name, 20, _launched, name) for name in streams.CHECKS),
        step("random", 120, _random),
        step("speed", 300, speed.run),
    ]


tables = speed.tables
"""The rows are those of the speed."""

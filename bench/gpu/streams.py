"""Launches as frameworks make them: captured, one behind the other, on another stream."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.gpu.machine import Machine
from bench.gpu.speed import Buffers, Run, Work, buffers, ours, worst_error
from toolbox import abi


def _problem(library: Path, machine: Machine) -> tuple[Work, Run, Buffers]:
    work = Work("norm", 8, 16384, "bfloat16")  # two blocks to a row on sm_90
    run = ours(abi.functions(library), machine, work)
    return work, run, buffers(work, torch.Generator(machine.device).manual_seed(1))


def _wrong(work: Work, used: Buffers) -> list[str]:
    error = worst_error(work, used, used["y"])
    return [] if error <= 3 else [f"off by {error} ulp"]


def capture_first(library: Path, machine: Machine) -> list[str]:
    """The first launch of a process is captured, and replayed twice on other inputs."""
    work, run, used = _problem(library, machine)
    replay = machine.captured(lambda: run(used))
    wrong = []
    for sign in (-1, -2):
        used["x"].mul_(sign)
        used["y"].fill_(float("nan"))
        replay()
        machine.wait()
        wrong += _wrong(work, used)
    return wrong


def chain(library: Path, machine: Machine) -> list[str]:
    """Each of many launches, which may overlap, reads what the one before it wrote."""
    _, run, used = _problem(library, machine)
    ends = []
    for waits in (False, True):
        one, other = used | {"x": used["x"].clone()}, dict(used)
        other["x"], other["y"] = one["y"], one["x"]
        for number in range(machine.chain):
            run((one, other)[number % 2])
            if waits:
                machine.wait()
        machine.wait()
        ends.append(one["x"].view(torch.uint8).clone())
    return [] if torch.equal(*ends) else ["the end differs from that of launches that wait"]


def other_stream(library: Path, machine: Machine) -> list[str]:
    """Behind a copy on the same stream, which is not the default one."""
    work, run, used = _problem(library, machine)
    source = used["x"].clone()
    used["x"].zero_()
    machine.wait()
    with machine.other_stream():
        used["x"].copy_(source)
        run(used)
        machine.wait()
    return _wrong(work, used)


CHECKS = {"capture first": capture_first, "a chain": chain, "another stream": other_stream}

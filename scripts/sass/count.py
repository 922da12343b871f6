"""Exact counts of a launch: one thread of it is run on the numbers of an ordinary row."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections import Counter

from scripts.sass import model
from scripts.sass.launches import TENSORS, Launch, Recorder, Work
from scripts.sass.meanings import MEANINGS
from scripts.sass.parse import Code, Usage
from scripts.sass.thread import PARAMETERS, Memory, Thread

_ONES = {"float32": 0x3F800000, "bfloat16": 0x3F803F80, "float16": 0x3C003C00}
_NAMES = {address >> 40: name for name, address in TENSORS.items()}
_HBM, _L2, _L1 = 750, 290, 38  # cycles until a load is there, under some load


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Of one launch on an H200, for a row where nothing else is said.

    Attributes:
        kernel: template and arguments.
        registers, stack: of a thread; bytes of stack, spills among them.
        blocks: that are on an SM at once.
        instructions: of the SM for an element, 32 for an instruction of a warp.
        in_flight: KB of x and of the other input that an SM asks for before the first is used.
        x_trips, weight_trips: dependent ways to memory for a row's inputs, and for its parameters.
        barriers, cluster_barriers: that a row waits at.
        share: of the copy rate, by the queueing model.
        unsure: instructions whose meaning, or branches whose way, was not known.
    """

    kernel: str
    threads: int
    cluster: int
    registers: int
    stack: int
    blocks: int
    instructions: float
    in_flight: float
    x_trips: int
    weight_trips: int
    barriers: int
    cluster_barriers: int
    share: float
    unsure: int


def count(
    work: Work, recorder: Recorder, codes: dict[str, Code], usages: dict[str, Usage]
) -> Counts:
    """Launch the work and run a thread of it."""
    launch = recorder.launch(work)
    code, usage = codes[launch.kernel], usages[launch.kernel]
    first = int(launch.blocks * launch.rows_at_once)  # rows of the first round of all blocks
    steady = first < work.rows
    runs = [_run(work, launch, code, first * rounds) for rounds in ((2, 3) if steady else (1,))]
    last = runs[-1]
    before = runs[0] if steady else Thread(code, {}, constants={}, special={}, memory=_memory(work))
    steps = last.steps - before.steps
    clock, earlier = last.clock, before.clock
    pipes, trips, operations = (
        _difference(getattr(clock, name), getattr(earlier, name))
        for name in ("pipes", "trips", "count")
    )
    resident = model.resident(launch, usage.registers)
    flight = sum(clock.in_flight[name] for name in ("x", "other"))
    warps = -(-launch.threads // 32)
    elements = work.n * launch.rows_at_once
    return Counts(
        kernel=_short(launch.kernel),
        threads=launch.threads,
        cluster=launch.cluster,
        registers=usage.registers,
        stack=usage.stack,
        blocks=resident,
        instructions=round(steps * warps * 32 / elements, 2),
        in_flight=flight * launch.threads * resident / 1024,
        x_trips=trips["x"] + trips["other"] + trips["again"],
        weight_trips=trips["scale"] + trips["bias"],
        barriers=operations["BAR"],
        cluster_barriers=operations["UCGABAR_WAIT"],
        share=round(
            model.share_of_copy(
                launch,
                resident=resident,
                alone=clock.now - earlier.now + (0 if steady else model.LAUNCH_GAP),
                steps=steps,
                pipes=pipes,
                bytes_moved=work.row_bytes * launch.rows_at_once,
                steady=steady,
                waits=operations["BAR"] > 0 or launch.cluster > 1,
            ),
            3,
        ),
        unsure=last.guessed + sum(last.unknown.values()),
    )


def _difference(after: Counter[str], before: Counter[str]) -> Counter[str]:
    return Counter({name: after[name] - before[name] for name in after})


def _run(work: Work, launch: Launch, code: Code, rows: int) -> Thread:
    """Thread 0 of block 0."""
    parameters = launch.with_rows(rows)
    words = struct.unpack(f"<{len(parameters) // 4}I", parameters)
    constants = {PARAMETERS + 4 * i: word for i, word in enumerate(words)}
    constants |= {0x0: launch.threads, 0x4: 1, 0x8: 1, 0xC: launch.blocks, 0x10: 1, 0x14: 1}
    constants[0x140] = int(launch.cluster > 1)
    return Thread(code, MEANINGS, constants=constants, special={}, memory=_memory(work)).run()


def _memory(work: Work) -> Memory:
    """Ones everywhere; the first look at x comes from HBM, the second from L2."""
    ones = _ONES[work.dtype]
    seen: set[int] = set()

    def memory(at: int | None, size: int) -> tuple[list[int], int, str]:
        name = "?" if at is None else _NAMES.get(at >> 40, "?")
        words = [0x3F800000 if name == "quant_scale" else ones & (1 << 8 * min(size, 4)) - 1] * 4
        if name in ("x", "other") and at is not None:
            again = at in seen
            seen.add(at)
            return words, _L2 if again else _HBM, "again" if again else name
        return words, _L1 if name in ("scale", "bias", "quant_scale") else _L2, name

    return memory


def _short(kernel: str) -> str:
    """``row_registers<bf16, 4, ...>`` from a mangled name."""
    match = re.search(r"\d(row_[a-z]+)I(.*)EEv", kernel)
    if match is None:
        return kernel
    arguments = re.sub(r"^(\d+[_a-z0-9]+?)S\d*_", r"\1\1", match[2])  # the same type again
    arguments = arguments.replace("13__nv_bfloat16", "bf16,").replace("6__half", "f16,")
    arguments = re.sub(r"(?<=,)f(?=L)|^f(?=[fL])", "f32,", arguments)
    arguments = re.sub(r"f(?=L)", "f32,", arguments)
    arguments = re.sub(r"L(?:NS_\w+?E|[ib])(\d+)E?", r"\1,", arguments)
    return f"{match[1]}<{arguments.strip(',')}>"

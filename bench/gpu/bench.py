"""The grid of the GPU benchmark: what is run, on which sizes, and the rows that come out.

Throughput: tensors of at least 512 MiB and 16,384 rows where that fits, so that every call reads
cold memory. Latency: 1 to 32 rows in a graph, on one set of buffers (L2 warm) and on enough sets to
be out of L2 before they come round again (cold).
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch

from bench.gpu import peers
from bench.gpu.timing import Repeated, Timing, timings
from bench.gpu.work import Buffers, Op, Work, buffers, worst_error
from tests.tools.lib.command import say

THROUGHPUT_LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 4104, 5120, 8192]
THROUGHPUT_LENGTHS += [16384, 32768, 65536, 131072, 262144]
"""4,104 is 8 over a power of two: no multiple of what a warp loads at once."""

LATENCY_ROWS = (1, 4, 16, 32)
LATENCY_LENGTHS = (128, 512, 2048, 4096, 8192, 16384)
ROTARY_LENGTHS = (64, 128, 256)
"""Of a head."""

ERROR_BOUND, ROTARY_BOUND = 3.0, 6.0
"""Ulps from float64: three roundings to the type (sum, row, product), half an ulp each, which a
carry into the next binade doubles. Behind it, two products and their sum, and the errors of two
elements in each. A contender above it is not timed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One contender on one work."""

    work: Work
    cache: str
    contender: str
    timing: Timing | None
    error: float | None
    remark: str

    def as_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        found["work"] = dataclasses.asdict(self.work) | {"bytes": self.work.bytes}
        if self.timing is not None:
            found["bytes_per_second"] = self.work.bytes / self.timing.median
        return found


def throughput_grid(dtypes: Sequence[str], ops: Sequence[Op], *, quick: bool) -> list[Work]:
    """Large tensors, one work for each length."""
    lengths = [256, 4096, 65536] if quick else THROUGHPUT_LENGTHS
    grid = []
    for op in ops:
        own = [128] if quick else ROTARY_LENGTHS
        for dtype in dtypes:
            size = getattr(torch, dtype).itemsize
            for n in own if op == "rotary" else lengths:
                rows = max(16384 if n <= 65536 else 4096, (512 << 20) // (n * size))
                grid.append(Work(op, rows, n, dtype))
    return grid


def latency_grid(dtypes: Sequence[str], ops: Sequence[Op], *, quick: bool) -> list[Work]:
    """Few rows, as when one token is decoded."""
    rows, lengths = ((1, 32), (4096,)) if quick else (LATENCY_ROWS, LATENCY_LENGTHS)
    return [
        Work(op, r, n, dtype)
        for op in ops
        for dtype in dtypes
        for n in ((128,) if op == "rotary" else lengths)
        for r in rows
    ]


def grid(dtypes: Sequence[str], ops: Sequence[Op], *, quick: bool) -> list[tuple[Work, str]]:
    """Everything with its cache state, shuffled: a run that is cut short has some of each kind."""
    small = latency_grid(dtypes[:1], ops, quick=quick)
    found = [(work, "cold") for work in throughput_grid(dtypes, ops, quick=quick)]
    found += [(work, cache) for work in small for cache in ("warm", "cold")]
    random.Random(0).shuffle(found)
    return found


def _sets(work: Work, cache: str) -> int:
    """Sets of buffers to go round: four times the L2 in bytes, when it is to be cold."""
    if cache == "warm":
        return 1
    level2 = int(torch.cuda.get_device_properties(0).L2_cache_size)
    return max(1, min(4096, -(-4 * level2 // work.bytes)))


def measure(
    work: Work, cache: str, ours: Sequence[peers.Peer], *, rounds: int, seed: int
) -> list[Row]:
    """Every contender on one work; those that cannot or are wrong say so in a row."""
    generator = torch.Generator("cuda").manual_seed(seed)
    number = _sets(work, cache)
    pool = [buffers(work, generator) for _ in range(number)]
    rows: list[Row] = []
    ready: list[tuple[str, float, Repeated]] = []
    # A call below a microsecond is repeated until its graph takes some 100 of them.
    calls = max(1, min(512, (256 << 20) // work.bytes, 4096)) if work.bytes < (64 << 20) else 2
    calls = max(calls, number) if number <= 512 else calls
    for peer in [*ours, *peers.PEERS]:
        try:
            run = peer.make(work)
            found = run(pool[0])
            torch.cuda.synchronize()
            y = found[0] if isinstance(found, tuple) else found
            error = worst_error(work, pool[0], y)
            if not error <= (ROTARY_BOUND if work.op == "rotary" else ERROR_BOUND):
                rows.append(Row(work, cache, peer.name, None, error, "wrong, not timed"))
                continue
            ready.append((peer.name, error, Repeated(_call(run, pool), number, calls)))
        except peers.UnavailableError as reason:
            rows.append(Row(work, cache, peer.name, None, None, str(reason)))
        except Exception as failure:  # somebody else's library on a size it does not take
            first = str(failure).splitlines()[0] if str(failure) else ""
            rows.append(
                Row(work, cache, peer.name, None, None, f"{type(failure).__name__}: {first}")
            )
    times = timings([repeated for *_, repeated in ready], rounds)
    return [
        *(
            Row(work, cache, name, timing, error, "" if timing.graph else "not in a graph")
            for (name, error, _), timing in zip(ready, times, strict=True)
        ),
        *rows,
    ]


def _call(run: peers.PeerRun, pool: Sequence[Buffers]) -> Callable[[int], object]:
    return lambda number: run(pool[number])


def run(
    grid: Sequence[tuple[Work, str]],
    ours: Sequence[peers.Peer],
    *,
    rounds: int,
    seed: int,
    left: Callable[[], float],
    keep: Callable[[list[dict[str, Any]]], None],
    before: Sequence[dict[str, Any]] = (),
) -> int:
    """Measure the grid, with a line on stderr for each work.

    Args:
        grid: of ``grid``.
        ours: our contenders.
        rounds: samples of each timing.
        seed: of the inputs.
        left: seconds that are left.
        keep: called after each work with all rows so far, those of one kind together.
        before: rows of an earlier run; their works are not measured again.

    Returns:
        How many works were left out, because each took as long as there was time left.
    """
    rows = list(before)
    known = {(Work(**{k: row["work"][k] for k in _WORK}), row["cache"]) for row in rows}
    grid = [item for item in grid if item not in known]
    longest = 0.0
    for done, (work, cache) in enumerate(grid):
        if left() < longest:
            return len(grid) - done
        start = time.monotonic()
        found = measure(work, cache, ours, rounds=rounds, seed=seed)
        rows += [row.as_dict() for row in found]
        keep(sorted(rows, key=_place))
        timed = [row for row in found if row.timing is not None]
        text = ", ".join(
            f"{row.contender} {row.timing.median * 1e6:.1f}" for row in timed if row.timing
        )
        say(f"{work.op} {work.rows} x {work.n} {work.dtype} {cache}: {text} us")
        torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - start)
    return 0


_WORK = tuple(field.name for field in dataclasses.fields(Work))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    work = row["work"]
    return row["cache"], get_args(Op).index(work["op"]), work["dtype"], work["n"], work["rows"]

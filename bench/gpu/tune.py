"""Variants of the row kernel on a GPU, timed beside the one that is launched today.

Norm and skip of bf16, rows of 128 to 65,536 elements: of 2^28 elements in all, and 4,096, 64 and 1
of them; most promising variants first, every length in turn. The three fastest of each, and
today's, are timed again for longer.

A variant is compared with float64 before its time counts. The page says what is fastest for each
length, and what launch_table.h would say with the way to memory that is used today: for each length
one number of threads, as a row has to sum to the same in every batch.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from bench.gpu import speed
from bench.gpu.machine import Built, Machine
from bench.gpu.steps import Step, Tell
from toolbox import abi

FINALISTS = 3
FEW = 64
"""Rows up to which a launch has a warm cache, and no block takes several of them."""
USUAL = "as it is"
_OPS: tuple[speed.Op, ...] = ("norm", "skip")
_BYTES = 2  # of an element of bf16


class Variant(NamedTuple):
    """A launch, as struct Way of plugins/tests/kernels/tune.cu has it.

    The last four are the parameters of ``Manner`` in row_hot.cuh, by default those of production.
    """

    vectors: int
    lanes: int
    threads: int
    cluster: int
    rounds: int
    holds: bool = True
    streams: bool = False
    triggers: bool = True
    fetches: bool = True

    @property
    def manner(self) -> str:
        """Return how the way to memory differs from that of production."""
        changed = (
            "scale from L1" * (not self.holds),
            "stores by .cs" * self.streams,
            "no early trigger" * (not self.triggers),
            "no early fetch" * (not self.fetches),
        )
        return ", ".join(filter(None, changed)) or USUAL

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return what the order of a row's sum follows from."""
        return self.vectors, self.lanes, self.cluster


def shapes(n: int) -> Iterator[Variant]:
    """Yield the shapes for rows of n elements, a power of two."""
    vectors = n * _BYTES // 16
    for each, cluster, rounds in itertools.product((1, 2, 4), (1, 2, 4, 8, 16), (1, 2, 4, 8)):
        lanes = vectors // (each * cluster)
        if lanes * each * cluster != vectors:
            continue
        if lanes <= 32 and cluster == 1:
            tiles = ((threads, threads // lanes) for threads in (128, 256, 512))
            yield from (Variant(each, lanes, t, 1, rounds) for t, rows in tiles if 4 <= rows <= 32)
        elif 64 <= lanes <= 512 and (cluster == 1 or vectors // cluster >= 256):
            yield Variant(each, lanes, lanes, cluster, rounds)


def _doubt(shape: Variant) -> float:
    """Least for one row at a time, two vectors a thread, 128 to 256 threads, no cluster."""
    return (
        math.log2(shape.rounds)
        + 2 * abs(math.log2(shape.vectors / 2))
        + abs(math.log2(shape.threads / 192))
        + 0.5 * math.log2(shape.cluster)
    )


def variants(n: int) -> list[Variant]:
    """Return all, most promising first: of the best shapes every manner comes early."""
    likely = [*enumerate(sorted(shapes(n), key=_doubt))]
    flips = sorted(itertools.product((False, True), repeat=4), key=sum)
    turns = sorted(itertools.product(likely, enumerate(flips)), key=lambda p: p[0][0] + p[1][0])
    return [
        Variant(*shape[:5], *(usual != other for usual, other in zip(shape[5:], flip, strict=True)))
        for (_, shape), (_, flip) in turns
    ]


class _Bench:
    """Buffers for the largest work, of which each takes a part, and the two libraries."""

    def __init__(self, machine: Machine, built: Built) -> None:
        self.machine, self.copy = machine, machine.copy_rate()
        self.today, self.tuned = map(abi.functions, (built.library, built.tune))
        whole = speed.Work("skip", 1, max(machine.largest, *machine.lengths), "bfloat16")
        self.flat = speed.buffers(whole, torch.Generator(machine.device).manual_seed(machine.seed))
        self.flat = {name: tensor.flatten() for name, tensor in self.flat.items()}

    def row(self, work: speed.Work, way: Variant | None, spent: float) -> dict[str, Any]:
        """Check a variant, or without one what is launched today, and time it.

        Raises:
            ValueError: it is refused, or wrong.
            RuntimeError: the launch fails.
        """
        count = work.rows * work.n
        names = ("x", "y") if work.op == "norm" else ("x", "y", "residual", "sum")
        used = {name: self.flat[name][:count].view(work.rows, work.n) for name in names}
        used["weight"] = self.flat["weight"][: work.n]
        launch = speed.ours(self.tuned if way else self.today, self.machine, work)
        if way:
            manner = sum(bit << place for place, bit in enumerate(way[5:]))
            self.tuned.rmsnorm_tune((ctypes.c_int * 6)(*way[:5], manner))
        for name in {"y", "sum"} & used.keys():
            used[name].fill_(float("nan"))
        launch(used)
        error, bound = speed.worst_error(work, used, used["y"]), speed.BOUNDS[work.op]
        whole = bool(torch.isfinite(used["y"]).all())
        if work.op == "skip":
            whole = whole and bool((used["sum"] == used["x"] + used["residual"]).all())
        if not (error <= bound and whole):
            raise ValueError(f"wrong: {error:.1f} ulp, every row written: {whole}")
        seconds = self.machine.seconds(lambda: launch(used), warm=work.rows <= FEW, spent=spent)
        return {"seconds": seconds, "copied": work.bytes / self.copy}


def _works(machine: Machine) -> list[speed.Work]:
    return [
        speed.Work(op, rows, n, "bfloat16")
        for n in machine.lengths
        for rows in dict.fromkeys((max(1, machine.largest // n), 4096, FEW, 1))
        if rows * n <= max(machine.largest, n)
        for op in _OPS
    ]


def _timed(
    bench: _Bench, work: speed.Work, way: Variant | None, tell: Tell, spent: float = 0.004
) -> dict[str, Any]:
    row = {"op": work.op, "rows": work.rows, "n": work.n, "way": way}
    try:
        row |= bench.row(work, way, spent)
    except (RuntimeError, ValueError) as error:
        row |= {"remark": str(error)}
        tell("wrong", f"{work.op} {work.rows} x {work.n}, {way or 'today'}: {error}")
    tell("rows", row)
    return row


def time_variants(machine: Machine, built: Built, tell: Tell, end: float) -> None:
    """Time the variants of every work in turn; then the fastest of each, and today's, for longer.

    The last quarter of the time is for the second part.
    """
    bench, queues, rows = _Bench(machine, built), [], []
    for work in _works(machine):
        fitting = (one for one in variants(work.n) if one.rounds == 1 or work.rows > FEW)
        asked = (None, *itertools.islice(fitting, machine.variants))
        queues.append([(work, way) for way in asked])
    turns = [one for turn in itertools.zip_longest(*queues) for one in turn if one is not None]
    begun = time.monotonic()
    for number, (work, way) in enumerate(turns):
        if time.monotonic() > begun + 0.75 * (end - begun):
            tell("not run", f"{len(turns) - number} of {len(turns)} variants: the time is over")
            break
        rows.append(_timed(bench, work, way, tell))
    for work, timed in _by_work(rows).items():
        fastest = sorted((row for row in timed if row["way"]), key=_median)[:FINALISTS]
        for way in (None, *(row["way"] for row in fastest)):
            if time.monotonic() > end:
                tell("not run", "the fastest again: the time is over")
                return
            _timed(bench, work, way, tell, spent=0.1)


def steps(machine: Machine, built: Built) -> list[Step]:
    """Return the one step."""
    return [Step("variants", 650, functools.partial(time_variants, machine, built))]


def _median(row: dict[str, Any]) -> float:
    return float(row["seconds"][1])


def _by_work(rows: list[dict[str, Any]]) -> dict[speed.Work, list[dict[str, Any]]]:
    """Rows that were timed, by what they compute; the last of the same variant counts."""
    timed = (row for row in rows if "seconds" in row)
    latest = {(row["op"], row["rows"], row["n"], *(row["way"] or ())): row for row in timed}
    works: dict[speed.Work, list[dict[str, Any]]] = {}
    for row in latest.values():
        work = speed.Work(row["op"], row["rows"], row["n"], "bfloat16")
        works.setdefault(work, []).append(row)
    order = sorted(works, key=lambda work: (work.op, -work.rows * work.n, work.n))
    return {work: works[work] for work in order}


def _fastest(works: dict[speed.Work, list[dict[str, Any]]]) -> Iterator[tuple[Any, ...]]:
    """Yield each work, what is launched today, what is fastest, its variant, and how many."""
    for work, timed in works.items():
        today = next((row for row in timed if not row["way"]), None)
        variants_timed = [row for row in timed if row["way"]]
        if today and variants_timed:
            best = min(variants_timed, key=_median)
            yield work, today, best, Variant(*best["way"]), len(variants_timed)


def _choice(works: dict[speed.Work, list[dict[str, Any]]]) -> Iterator[tuple[int, Variant, float]]:
    """Yield for each length, in bytes, the shape whose worst time over the fastest is least.

    In today's manner.
    """
    for n in sorted({work.n for work in works}):
        costs: dict[tuple[int, int, int], list[float]] = {}
        large: dict[tuple[int, int, int], Variant] = {}
        for timed in (timed for work, timed in works.items() if work.n == n):
            ways = [(_median(row), Variant(*row["way"])) for row in timed if row["way"]]
            own = sorted((one for one in ways if one[1].manner == USUAL), reverse=True)
            for shape, (seconds, way) in {way.shape: (s, way) for s, way in own}.items():
                costs.setdefault(shape, []).append(seconds / own[-1][0])
                large.setdefault(shape, way)  # the largest work comes first
        full = max(map(len, costs.values()), default=0)
        if fitting := [shape for shape, taken in costs.items() if len(taken) == full]:
            shape = min(fitting, key=lambda one: max(costs[one]))
            yield n * _BYTES, large[shape], max(costs[shape])


def tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is fastest, and the choice."""
    works = _by_work(rows)
    lists = {"fastest": list(_fastest(works)), "choice": list(_choice(works))}
    return {**lists, "shape": Variant._fields[:5], "usual": USUAL}

"""Variants of the row kernel on a GPU, timed beside the one that is launched today:

  variants  norm and skip of bf16, rows of 128 to 65,536 elements: of 2^28 elements in all, and
            4,096, 64 and 1 of them; most promising variants first, every length in turn
  finals    the three fastest of each, and today's, timed again for longer

A variant is compared with float64 before its time counts. The page says what is fastest for each
length, what each way to memory costs where it is used for all of them, and what launch_table.h
would say: for each length one number of threads, as a row has to sum to the same in every batch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.gpu import speed
from bench.gpu.machine import Built, Machine
from bench.gpu.steps import Step, Tell
from bench.lib.tables import markdown_table
from rmsnorm_export.op import abi

TITLE = "Variants of the row kernel"
TODAY: dict[str, Any] = {}
"""The fields of no variant: what ``rmsnorm_launch`` chooses."""
FINALISTS = 3
_OPS: tuple[speed.Op, ...] = ("norm", "skip")
_BYTES = 2  # of an element of bf16


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """The shape of a launch: struct Way of plugins/tests/kernels/tune.cu, without its manner."""

    vectors: int
    lanes: int
    threads: int
    cluster: int
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Manner:
    """The way to memory: Manner of row_hot.cuh; its defaults are those of production."""

    holds: bool = True
    streams: bool = False
    triggers: bool = True
    fetches: bool = True

    @property
    def bits(self) -> int:
        return sum(value << place for place, value in enumerate(dataclasses.astuple(self)))

    def __str__(self) -> str:
        changed = (
            "scale from L1" * (not self.holds),
            "stores by .cs" * self.streams,
            "no early trigger" * (not self.triggers),
            "no early fetch" * (not self.fetches),
        )
        return ", ".join(filter(None, changed)) or "as it is"


def ways(n: int) -> Iterator[Way]:
    """Yield the shapes for rows of n elements, a power of two."""
    vectors = n * _BYTES // 16
    for each, cluster, rounds in itertools.product((1, 2, 4), (1, 2, 4, 8, 16), (1, 2, 4, 8)):
        lanes = vectors // (each * cluster)
        if lanes * each * cluster != vectors:
            continue
        if lanes <= 32 and cluster == 1:
            tiles = ((threads, threads // lanes) for threads in (128, 256, 512))
            yield from (Way(each, lanes, t, 1, rounds) for t, rows in tiles if 4 <= rows <= 32)
        elif 64 <= lanes <= 512 and (cluster == 1 or vectors // cluster >= 256):
            yield Way(each, lanes, lanes, cluster, rounds)


def _doubt(way: Way) -> float:
    """Least for one row at a time, two vectors a thread, 128 to 256 threads, no cluster."""
    return (
        math.log2(way.rounds)
        + 2 * abs(math.log2(way.vectors / 2))
        + abs(math.log2(way.threads / 192))
        + 0.5 * math.log2(way.cluster)
    )


MANNERS = sorted(
    itertools.starmap(Manner, itertools.product((True, False), repeat=4)),
    key=lambda manner: (manner.bits ^ Manner().bits).bit_count(),
)


def variants(n: int) -> list[tuple[Way, Manner]]:
    """Return all, most promising first: of the best shapes every manner comes early."""
    shapes = sorted(ways(n), key=_doubt)
    pairs = itertools.product(enumerate(shapes), enumerate(MANNERS))
    return [
        (way, manner) for (_, way), (_, manner) in sorted(pairs, key=lambda p: p[0][0] + p[1][0])
    ]


class _Bench:
    """Buffers for the largest work, of which each takes a part, and the two libraries."""

    def __init__(self, machine: Machine, built: Built) -> None:
        self.machine, self.copy = machine, machine.copy_rate()
        self.today, self.tuned = map(abi.functions, (built.library, built.tune))
        whole = speed.Work("skip", 1, max(machine.largest, *machine.lengths), "bfloat16")
        self.flat = speed.buffers(whole, torch.Generator(machine.device).manual_seed(machine.seed))
        self.flat = {name: tensor.flatten() for name, tensor in self.flat.items()}

    def row(self, work: speed.Work, fields: dict[str, Any], spent: float) -> dict[str, Any]:
        """Check a variant, and time it; fields of ``Way`` and ``Manner``, or ``TODAY``."""
        count = work.rows * work.n
        names = ("x", "y") if work.op == "norm" else ("x", "y", "residual", "sum")
        used = {name: self.flat[name][:count].view(work.rows, work.n) for name in names}
        used["weight"] = self.flat["weight"][: work.n]
        launch = speed.ours(self.tuned if fields else self.today, self.machine, work)
        if fields:
            manner = Manner(*(fields[f.name] for f in dataclasses.fields(Manner)))
            numbers = [fields[f.name] for f in dataclasses.fields(Way)]
            self.tuned.rmsnorm_tune((ctypes.c_int * 6)(*numbers, manner.bits))
        for name in {"y", "sum"} & used.keys():
            used[name].fill_(float("nan"))
        launch(used)
        error, bound = speed.worst_error(work, used, used["y"]), speed.BOUNDS[work.op]
        whole = bool(torch.isfinite(used["y"]).all())
        if work.op == "skip":
            whole = whole and bool((used["sum"] == used["x"] + used["residual"]).all())
        row = {"op": work.op, "rows": work.rows, "n": work.n, "way": fields}
        row |= {"copied": work.bytes / self.copy}
        if not (error <= bound and whole):
            return {**row, "remark": f"wrong: {error:.1f} ulp, every row written: {whole}"}
        warm = work.rows <= 64
        return {
            **row,
            "seconds": self.machine.seconds(lambda: launch(used), warm=warm, spent=spent),
        }


def _works(machine: Machine) -> list[speed.Work]:
    return [
        speed.Work(op, rows, n, "bfloat16")
        for n in machine.lengths
        for rows in dict.fromkeys((max(1, machine.largest // n), 4096, 64, 1))
        if rows * n <= max(machine.largest, n)
        for op in _OPS
    ]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["op"], row["rows"], row["n"], *row["way"].items()


def _timed(bench: _Bench, work: speed.Work, fields: dict[str, Any], tell: Tell, **how: Any) -> None:
    name = f"{work.op} {work.rows} x {work.n}, {fields or 'today'}"
    try:
        row = bench.row(work, fields, how["spent"])
    except (RuntimeError, speed.UnavailableError) as error:
        row = {"op": work.op, "rows": work.rows, "n": work.n, "way": fields, "remark": str(error)}
    if "remark" in row:
        tell("wrong", f"{name}: {row['remark']}")
    tell("rows", {**row, "final": how.get("final", False)})


def time_variants(
    before: list[dict[str, Any]], machine: Machine, built: Built, tell: Tell, end: float
) -> None:
    """Time what is not among the rows of before; the variants of every work in turn."""
    bench, done = _Bench(machine, built), {_key(row) for row in before}
    queues = []
    for work in _works(machine):
        fields = [dataclasses.asdict(w) | dataclasses.asdict(m) for w, m in variants(work.n)]
        queues.append([(work, one) for one in (TODAY, *fields[: machine.variants])])
    turns = [one for turn in itertools.zip_longest(*queues) for one in turn if one is not None]
    for number, (work, fields) in enumerate(turns):
        if time.monotonic() > end:
            tell("not run", f"{len(turns) - number} of {len(turns)} variants: the time is over")
            break
        key = {"op": work.op, "rows": work.rows, "n": work.n, "way": fields}
        if _key(key) not in done:
            _timed(bench, work, fields, tell, spent=0.004)


def time_finalists(
    rows: list[dict[str, Any]], machine: Machine, built: Built, tell: Tell, end: float
) -> None:
    """Time the fastest of each work, and today's, again; ``rows``: what ``variants`` found."""
    bench = _Bench(machine, built)
    for work, timed in _by_work(rows).items():
        found = sorted((row for row in timed if row["way"]), key=_median)[:FINALISTS]
        for fields in (TODAY, *(row["way"] for row in found)):
            if time.monotonic() > end:
                tell("not run", "finals: the time is over")
                return
            _timed(bench, work, fields, tell, spent=0.1, final=True)


def steps(machine: Machine, built: Built, before: list[dict[str, Any]]) -> list[Step]:
    """Return them in order. Both get the list of rows, which grows."""
    return [
        Step("variants", 500, functools.partial(time_variants, before, machine, built)),
        Step("finals", 150, functools.partial(time_finalists, before, machine, built)),
    ]


def _median(row: dict[str, Any]) -> float:
    return float(row["seconds"][1])


def _by_work(rows: list[dict[str, Any]]) -> dict[speed.Work, list[dict[str, Any]]]:
    """Rows that were timed, by what they compute; the last of the same variant counts."""
    latest = {_key(row): row for row in rows if "seconds" in row}
    works: dict[speed.Work, list[dict[str, Any]]] = {}
    for row in latest.values():
        work = speed.Work(row["op"], row["rows"], row["n"], "bfloat16")
        works.setdefault(work, []).append(row)
    order = sorted(works, key=lambda work: (work.op, -work.rows * work.n, work.n))
    return {work: works[work] for work in order}


def _shape(row: dict[str, Any]) -> tuple[int, int, int]:
    """What the order of a row's sum follows from."""
    return row["way"]["vectors"], row["way"]["lanes"], row["way"]["cluster"]


def _manner(row: dict[str, Any]) -> Manner:
    return Manner(*(row["way"][field.name] for field in dataclasses.fields(Manner)))


def _us(row: dict[str, Any]) -> str:
    return " to ".join(f"{1e6 * row['seconds'][quartile]:.2f}" for quartile in (0, 2))


def _fastest(works: dict[speed.Work, list[dict[str, Any]]]) -> list[str]:
    lines = []
    for work, timed in works.items():
        today = next((row for row in timed if not row["way"]), None)
        found = [row for row in timed if row["way"]]
        if today is None or not found:
            continue
        best = min(found, key=_median)
        way = best["way"]
        shape = f"{way['lanes']} x {way['vectors']}, cluster {way['cluster']}"
        shares = (f"{row['copied'] / _median(row):.0%}" for row in (today, best))
        cells = [work.op, f"{work.rows:,}", f"{work.n:,}", _us(today), _us(best), *shares]
        cells += [f"{_median(best) / _median(today):.2f}", shape, str(way["threads"])]
        lines.append([*cells, str(way["rounds"]), str(_manner(best)), str(len(found))])
    headings = ["op", "rows:", "n:", "today, us:", "fastest, us:", "today, of a copy:", "fastest:"]
    headings += ["ratio:", "threads x vectors of a row", "block:", "rows:", "memory", "timed:"]
    return markdown_table(headings, lines)


def _manners(works: dict[speed.Work, list[dict[str, Any]]]) -> dict[Manner, list[float]]:
    """The time of each manner's fastest shape over the fastest of all, of the largest works."""
    costs: dict[Manner, list[float]] = {manner: [] for manner in MANNERS}
    for work, timed in works.items():
        found = [row for row in timed if row["way"]]
        if not found or work.rows <= 4096 < max(w.rows for w in works if w.n == work.n):
            continue
        least = min(map(_median, found))
        for manner, taken in costs.items():
            own = [_median(row) for row in found if _manner(row) == manner]
            taken += [min(own) / least] if own else []
    full = max(map(len, costs.values()))
    return {manner: taken for manner, taken in costs.items() if taken and len(taken) == full}


def _choice(works: dict[speed.Work, list[dict[str, Any]]], manner: Manner) -> list[str]:
    """For each length the shape whose worst time, over the fastest of the manner, is least."""
    lines = []
    for n in sorted({work.n for work in works}):
        costs: dict[tuple[int, int, int], list[float]] = {}
        large: dict[tuple[int, int, int], dict[str, Any]] = {}
        for work, timed in works.items():
            own = [row for row in timed if row["way"] and _manner(row) == manner]
            if work.n != n or not own:
                continue
            least = min(map(_median, own))
            for shape in {_shape(row) for row in own}:
                best = min((row for row in own if _shape(row) == shape), key=_median)
                costs.setdefault(shape, []).append(_median(best) / least)
                large.setdefault(shape, best)  # the largest work comes first
        full = max(map(len, costs.values()), default=0)
        fitting = [shape for shape, taken in costs.items() if len(taken) == full]
        if fitting:
            shape = min(fitting, key=lambda one: max(costs[one]))
            way, words = large[shape]["way"], [f"{n * _BYTES:,}", *map(str, shape)]
            lines.append(
                [*words, str(way["threads"]), str(way["rounds"]), f"{max(costs[shape]):.2f}"]
            )
    headings = (
        "bytes of a row:",
        "vectors:",
        "lanes:",
        "cluster:",
        "block:",
        "rows:",
        "worst ratio:",
    )
    return markdown_table(headings, lines)


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Return what is fastest, what each way to memory costs, and the choice, as Markdown."""
    works = _by_work(rows)
    lines = ["## Fastest", "", *_fastest(works)]
    if manners := _manners(works):
        means = {manner: sum(taken) / len(taken) for manner, taken in manners.items()}
        order = sorted(means, key=means.__getitem__)
        cells = [[str(m), f"{means[m]:.3f}", f"{max(manners[m]):.3f}"] for m in order]
        lines += ["", "## One way to memory for all, large tensors", ""]
        lines += markdown_table(["memory", "mean ratio:", "worst:"], cells)
        for manner in dict.fromkeys((order[0], Manner())):
            lines += [
                "",
                f"## What launch_table.h would say: {manner}",
                "",
                *_choice(works, manner),
            ]
    return lines

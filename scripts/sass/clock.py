"""When the instructions of one warp are issued, and what of its loads is under way meanwhile.

In order, one a cycle, each when its operands are there and its pipe is free. Pipes of a quarter of
an SM of sm_90: f32 multiply-add a warp instruction a cycle, integer and logic every second, memory
every fourth, transcendental functions and conversions every eighth.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from scripts.sass.parse import CONTROL, DOUBLES, Instruction

_FMA = {"FADD", "FMUL", "FFMA", "IMAD", "HFMA2", "HADD2", "HMUL2", "FSWZADD"}
_XU = {"MUFU", "I2F", "F2I", "F2IP", "F2F", "POPC", "FLO", "FRND"}
_MEMORY = {
    "LDG",
    "STG",
    "LDS",
    "STS",
    "LD",
    "ST",
    "LDGSTS",
    "ATOMS",
    "RED",
    "SHFL",
    "LDL",
    "STL",
    "LDC",
    "SYNCS",
    "STAS",
}
_UNIFORM = {"S2UR", "ULDC", "R2UR"}

WIDTH = {"fma": 1, "alu": 2, "xu": 8, "dp": 2, "mem": 4, "uni": 2, "ctl": 1}
"""Cycles for which an instruction keeps its pipe."""

_LATENCY = {"fma": 4, "alu": 5, "xu": 22, "dp": 12, "uni": 8, "ctl": 1, "mem": 5}
_LATENCY_OF = {
    "SHFL": 24,
    "LDS": 29,
    "LDC": 40,
    "S2R": 30,
    "S2UR": 30,
    "ULDC": 12,
    "MUFU": 30,
    "I2F": 22,
    "F2I": 22,
}
_STORE = 700  # until a fence of the GPU sees a store done
BARRIER = 35  # __syncthreads of a full block
CLUSTER_BARRIER = 650  # of a cluster, with its fence
EXCHANGE = 250  # from a word's departure until its receiver goes on: 180 of them on the way (Luo et
# al. 2024, Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, section V-F)

ASYNC = "SB0"
"""Stands for the copies to shared memory that are under way."""


def pipe(base: str) -> str:
    """Where an operation is executed."""
    if base in _FMA:
        return "fma"
    if base in _XU:
        return "xu"
    if base in DOUBLES:
        return "dp"
    if base in _MEMORY:
        return "mem"
    if base in CONTROL:
        return "ctl"
    return "uni" if base.startswith("U") or base in _UNIFORM else "alu"


class Clock:
    """Of one warp."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count: Counter[str] = Counter()
        self.pipes: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        """Bytes a thread, by tensor, loads and stores alike."""
        self.in_flight: Counter[str] = Counter()
        """The most bytes a thread that were under way when the first of them was waited for."""
        self.trips: Counter[str] = Counter()
        """Waits for loads that were issued after the wait before: dependent ways to memory."""
        self._ready: defaultdict[str, float] = defaultdict(float)
        self._free: defaultdict[str, float] = defaultdict(float)
        self._loads: dict[int, tuple[int, str]] = {}
        self._load_of: dict[str, int] = {}
        self._next, self._waited = 0, 0
        self._stored = 0.0

    def issue(self, instruction: Instruction, goes: bool) -> None:
        """Count an instruction; where its guard lets it, wait for what it reads."""
        kind = pipe(instruction.base)
        self.count[instruction.base] += 1
        self.pipes[kind] += 1
        start = max(self.now + 1, self._free[kind])
        if goes:
            reads = [ASYNC] if instruction.base == "DEPBAR" else instruction.reads
            for name in reads:
                start = max(start, self._ready[name])
                if name in self._load_of:
                    self._wait(self._load_of[name])
            if instruction.base == "MEMBAR":
                start = max(start, self._stored)
        self._free[kind] = start + WIDTH[kind]
        self.now = start
        if goes:
            ready = start + _LATENCY_OF.get(instruction.base, _LATENCY[kind])
            for name in instruction.writes:
                self._ready[name] = ready
                self._load_of.pop(name, None)

    def load(self, names: list[str], size: int, tensor: str, latency: float) -> None:
        """A load of ``size`` bytes a thread, which arrives in the registers."""
        self.moved[tensor] += size
        self._loads[self._next] = size, tensor
        for name in names:
            self._ready[name] = max(self._ready[name] * (name == ASYNC), self.now + latency)
            self._load_of[name] = self._next
        self._next += 1

    def store(self, size: int, tensor: str) -> None:
        """A store of ``size`` bytes a thread; a fence waits for it."""
        self.moved[tensor] += size
        self._stored = self.now + _STORE

    def _wait(self, load: int) -> None:
        under_way: Counter[str] = Counter()
        for size, tensor in self._loads.values():
            under_way[tensor] += size
        for tensor, size in under_way.items():
            self.in_flight[tensor] = max(self.in_flight[tensor], size)
        if load >= self._waited:
            self.trips[self._loads[load][1]] += 1
            self._waited = self._next
        self._loads = {key: value for key, value in self._loads.items() if key > load}
        self._load_of = {name: key for name, key in self._load_of.items() if key > load}

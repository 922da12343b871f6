"""What the instructions of sm_90 do, as far as the kernels use them.

An operation that is not here leaves what it writes unknown, and is counted as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scripts.sass.clock import ASYNC, BARRIER, CLUSTER_BARRIER, EXCHANGE
from scripts.sass.parse import Instruction, Operand, words
from scripts.sass.reals import COMPARISONS, REALS, combine
from scripts.sass.thread import EXIT, Meaning, Thread
from scripts.sass.words import M32, signed


def _nothing(_thread: Thread, _i: Instruction) -> None:
    pass


def _split(i: Instruction) -> tuple[Operand, list[Operand], list[Operand]]:
    """Register written, predicates written after it, and the sources."""
    at = 1
    while i.operands[at].kind == "predicate":
        at += 1
    return i.operands[0], i.operands[1:at], i.operands[at:]


def _all(function: Callable[..., int], values: Sequence[Any]) -> int | None:
    return None if any(value is None for value in values) else function(*values) & M32


def _integers(function: Callable[..., int], sources: int) -> Meaning:
    def meaning(t: Thread, i: Instruction) -> None:
        values = [t.integer(o) for o in i.operands[1 : 1 + sources]]
        t.put(i.operands[0], _all(function, values))

    return meaning


# Control


def _branch(t: Thread, i: Instruction) -> int | None:
    if "DIV" in i.modifiers:  # for warps whose threads went different ways
        return None
    if len(i.operands) > 1 and i.operands[0].kind == "predicate" and not t.decided(i.operands[0]):
        return None
    return int(i.operands[-1].value)


def _return(t: Thread, i: Instruction) -> int:
    to = t.integer(i.operands[0])
    return to if to in t.code else EXIT


def _pause(cycles: float) -> Meaning:
    def meaning(t: Thread, _i: Instruction) -> None:
        t.clock.now += cycles

    return meaning


def _mailbox(t: Thread, i: Instruction) -> None:
    """SYNCS, an mbarrier: a wait for it ends when the words of the other blocks have come."""
    if "PHASECHK" in i.modifiers:
        t.clock.now += EXCHANGE
        t.decide(i.operands[0], True)


# Integers


def _add(t: Thread, i: Instruction) -> None:
    result, carries, sources = _split(i)
    more = "X" in i.modifiers
    total: int | None = 0
    for o in sources[:3]:
        value = t.word(o)
        if value is None:
            total = None
            break
        # A negated word as the hardware adds it, so that the carry is right.
        total = (total or 0) + ((~value & M32) + (not more) if o.negate else value)
    if total is not None and more:
        for o in sources[3:]:
            truth = t.truth(o)
            total = None if truth is None or total is None else total + truth
    t.put(result, None if total is None else total & M32)
    for o in carries:
        t.decide(o, None if total is None else total >> 32 != 0)


def _multiply_add(t: Thread, i: Instruction) -> None:
    result, carries, sources = _split(i)
    wide = "WIDE" in i.modifiers
    high = "HI" in i.modifiers
    a, b = (t.integer(o) for o in sources[:2])
    c = t.pair(sources[2]) if wide or high else t.integer(sources[2])
    total = None
    if a is not None and b is not None and c is not None:
        if "U32" not in i.modifiers and (wide or high):
            a, b = signed(a), signed(b)
        total = a * b + c
        if "X" in i.modifiers and len(sources) > 3:
            total += bool(t.truth(sources[3]))
    for o in carries:
        t.decide(o, None if total is None else total >> (64 if wide or high else 32) != 0)
    low = None if total is None else total & M32
    top = None if total is None else total >> 32 & M32
    if wide:
        t.put(result, low, top)
    else:
        t.put(result, top if high else low)


def _scaled_add(t: Thread, i: Instruction) -> None:
    """LEA: (a << shift) + b; .HI: the high word of (c:a << shift), plus b."""
    result, carries, sources = _split(i)
    a, b = t.integer(sources[0]), t.integer(sources[1])
    rest = sources[2:]
    above: int | None = 0
    if "HI" in i.modifiers and "SX32" in i.modifiers:
        above = None if a is None else M32 * (a >> 31)
    elif "HI" in i.modifiers:
        above, rest = t.integer(rest[0]), rest[1:]
    shift = t.integer(rest[0])
    carry = t.truth(rest[1]) if "X" in i.modifiers and len(rest) > 1 else False
    total = None
    if a is not None and b is not None and above is not None and shift is not None:
        shifted = (above << 32 | a) << shift
        total = (shifted >> 32 if "HI" in i.modifiers else shifted) & M32
        total = None if carry is None else total + b + carry
    t.put(result, None if total is None else total & M32)
    for o in carries:
        t.decide(o, None if total is None else total >> 32 != 0)


def _logic(t: Thread, i: Instruction) -> None:
    operands = list(i.operands)
    to = operands.pop(0) if operands[0].kind == "predicate" else None
    table = int(operands[4].value)
    known = [t.integer(o) for o in operands[1:4]]
    # What does not matter may be unknown: both values of it are tried.
    tried = {
        sum(
            (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) & M32
            for n in range(8)
            if table >> n & 1
        )
        & M32
        for a in _choices(known[0])
        for b in _choices(known[1])
        for c in _choices(known[2])
    }
    value = tried.pop() if len(tried) == 1 else None
    t.put(operands[0], value)
    if to is not None:
        t.decide(to, None if value is None else value != 0)


def _choices(value: int | None) -> tuple[int, ...]:
    return (0, M32) if value is None else (value,)


def _predicate_logic(t: Thread, i: Instruction) -> None:
    inputs = [t.truth(o) for o in i.operands[2:5]]
    for to, table in zip(i.operands[:2], i.operands[5:7], strict=False):
        bits = {
            int(table.value) >> (4 * a + 2 * b + c) & 1
            for a in ((0, 1) if inputs[0] is None else (int(inputs[0]),))
            for b in ((0, 1) if inputs[1] is None else (int(inputs[1]),))
            for c in ((0, 1) if inputs[2] is None else (int(inputs[2]),))
        }
        t.decide(to, bool(bits.pop()) if len(bits) == 1 else None)


def _shift(t: Thread, i: Instruction) -> None:
    low, by, high = (t.integer(o) for o in i.operands[1:4])
    if low is None or by is None or high is None:
        return t.put(i.operands[0], None)
    is_signed = any(m.startswith("S") for m in i.modifiers)
    by = by & 63 if "W" in i.modifiers else min(by, 64 if "64" in "".join(i.modifiers) else 32)
    both = high << 32 | low
    if i.modifiers[0] == "L":
        value = both << by
        value = value >> 32 if "HI" in i.modifiers else low << by
    elif "HI" in i.modifiers:
        value = (signed(high) if is_signed else high) >> by
    else:
        value = (both - (1 << 64) if is_signed and high >> 31 else both) >> by
    return t.put(i.operands[0], value & M32)


def _select(t: Thread, i: Instruction) -> None:
    truth = t.truth(i.operands[3])
    a, b = (t.integer(o) for o in i.operands[1:3])
    t.put(i.operands[0], (a if a == b else None) if truth is None else a if truth else b)


def _permute(t: Thread, i: Instruction) -> None:
    a, which, b = (t.integer(o) for o in i.operands[1:4])
    value: int | None = 0
    for place in range(4):
        choice = 0 if which is None else which >> 4 * place & 0xF
        source = a if choice & 4 == 0 else b
        if source is None or which is None:
            value = None
            break
        byte = source >> 8 * (choice & 3) & 0xFF
        byte = (0xFF if byte & 0x80 else 0) if choice & 8 else byte
        value = (value or 0) | byte << 8 * place
    t.put(i.operands[0], value)


def _least_or_greatest(t: Thread, i: Instruction) -> None:
    values = [t.integer(o) for o in i.operands[1:-1]]
    if i.base == "VIADDMNMX":
        a, b, *rest = values
        values = [None if a is None or b is None else (a + b) & M32, *rest]
    truth = t.truth(i.operands[-1])
    if truth is None or any(value is None for value in values):
        return t.put(i.operands[0], None)
    key = (lambda v: v) if "U32" in i.modifiers else signed
    known = [value for value in values if value is not None]
    return t.put(i.operands[0], (min if truth else max)(known, key=key))


def _compare_integers(t: Thread, i: Instruction) -> None:
    a, b = (t.integer(o) for o in i.operands[2:4])
    first: bool | None = None
    if a is not None and b is not None:
        how = i.modifiers[0]
        x, y = (a, b) if "U32" in i.modifiers else (signed(a), signed(b))
        first = COMPARISONS[how](x, y)
        if "EX" in i.modifiers and (a == b or how in ("EQ", "NE")):
            first = t.truth(i.operands[5]) if a == b else how == "NE"
    combine(t, i, first)


# Special registers, constants and memory


def _special(t: Thread, i: Instruction) -> None:
    t.put(i.operands[0], t.special.get(i.operands[1].name, 0))


def _zero(t: Thread, i: Instruction) -> None:
    t.put(i.operands[0], *([0] if "32" in i.modifiers else [0, 0]))


def _load_constant(t: Thread, i: Instruction) -> None:
    o = i.operands[1]
    at = t.address(o)
    if at is None or o.name != "c[0x0]":
        return t.put(i.operands[0], None)
    word = t.constants.get(at & ~3, 0)
    if i.size < 4:
        return t.put(i.operands[0], word >> 8 * (at & 3) & (1 << 8 * i.size) - 1)
    count = i.size // 4
    return t.put(i.operands[0], *(t.constants.get(at + 4 * j, 0) for j in range(count)))


def _load(t: Thread, i: Instruction) -> None:
    to = next(o for o in i.operands if o.kind == "register")
    at = t.address(next(o for o in i.operands if o.kind == "memory"))
    values, latency, tensor = t.memory(at, i.size)
    count = max(1, i.size // 4)
    names = [] if to.name.endswith("Z") else words(to.name, count)
    t.clock.load(names, i.size, tensor, latency)
    t.put(to, *values[:count])


def _copy(t: Thread, i: Instruction) -> None:
    """LDGSTS: from global to shared memory; what then lies there is not kept."""
    source = [o for o in i.operands if o.kind == "memory"][-1]
    _, latency, tensor = t.memory(t.address(source), i.size)
    t.clock.load([ASYNC], i.size, tensor, latency)


def _store(t: Thread, i: Instruction) -> None:
    _, _, tensor = t.memory(t.address(i.operands[0]), i.size)
    t.clock.store(i.size, tensor)


def _store_shared(t: Thread, i: Instruction) -> None:
    at, source = t.address(i.operands[0]), i.operands[1]
    if at is not None:
        for j in range(max(1, i.size // 4)):
            zero = source.name.endswith("Z")
            name = "" if zero else words(source.name, j + 1)[j]
            t.shared[at + 4 * j] = 0 if zero else t.state.get(name, 0)


def _load_shared(t: Thread, i: Instruction) -> None:
    at = t.address(i.operands[1])
    places = [None if at is None else at + 4 * j for j in range(max(1, i.size // 4))]
    t.put(i.operands[0], *(t.shared.get(place, t.shared_word) for place in places))


def _shuffle(t: Thread, i: Instruction) -> None:
    """Every lane has the same numbers."""
    t.decide(i.operands[0], True)
    t.put(i.operands[1], t.integer(i.operands[2]))


def _move_uniform(t: Thread, i: Instruction) -> None:
    to = next(o for o in i.operands if o.name.startswith("UR"))
    t.put(to, t.integer(i.operands[-1]))


def _pack_predicates(t: Thread, i: Instruction) -> None:
    truths = [t.state.get(f"P{n}", False) for n in range(7)]
    known = None not in truths
    value = sum(bool(truth) << n for n, truth in enumerate(truths))
    t.put(i.operands[0], value & int(i.operands[3].value) if known else None)


def _unpack_predicates(t: Thread, i: Instruction) -> None:
    value = t.integer(i.operands[1])
    for n in range(7):
        if int(i.operands[2].value) >> n & 1:
            t.state[f"P{n}"] = None if value is None else bool(value >> n & 1)


def _vote(t: Thread, i: Instruction) -> None:
    truth = t.truth(i.operands[-1]) if i.operands[-1].kind == "predicate" else None
    for o in i.operands[:2]:
        if o.kind == "register":
            t.put(o, None if truth is None else M32 * truth)
        elif o is not i.operands[-1]:
            t.decide(o, truth)


def _both(meaning: Meaning, *names: str) -> dict[str, Meaning]:
    """The operation and that of the uniform registers."""
    return dict.fromkeys(names, meaning) | {f"U{name}": meaning for name in names}


MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(
        ("NOP", "YIELD", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "ERRBAR", "CGAERRBAR", "ACQBULK"),
        _nothing,
    ),
    **dict.fromkeys(("PREEXIT", "BSSY", "BSYNC", "CCTL", "NANOSLEEP", "UCGABAR_ARV"), _nothing),
    **dict.fromkeys(("STAS", "FENCE"), _nothing),
    "SYNCS": _mailbox,
    "MEMBAR": _pause(20),
    "BAR": _pause(BARRIER),
    "UCGABAR_WAIT": _pause(CLUSTER_BARRIER),
    "EXIT": lambda _t, _i: EXIT,
    "BRA": _branch,
    "CALL": lambda _t, i: int(i.operands[-1].value),
    "RET": _return,
    **_both(_add, "IADD3"),
    **_both(_multiply_add, "IMAD"),
    **_both(_scaled_add, "LEA"),
    **_both(_logic, "LOP3"),
    **_both(_predicate_logic, "PLOP3"),
    **_both(_shift, "SHF"),
    **_both(_select, "SEL"),
    **_both(_permute, "PRMT"),
    **_both(_compare_integers, "ISETP"),
    **_both(_integers(lambda a: a, 1), "MOV"),
    "R2UR": _move_uniform,
    "VIADD": _integers(lambda a, b: a + b, 2),
    "IABS": _integers(lambda a: abs(signed(a)), 1),
    "POPC": _integers(lambda a: a.bit_count(), 1),
    **dict.fromkeys(("VIMNMX", "IMNMX", "VIMNMX3", "VIADDMNMX"), _least_or_greatest),
    **REALS,
    **dict.fromkeys(("S2R", "S2UR"), _special),
    "CS2R": _zero,
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), _load_constant),
    **dict.fromkeys(("LDG", "LD"), _load),
    **dict.fromkeys(("STG", "ST"), _store),
    "LDGSTS": _copy,
    "STS": _store_shared,
    "LDS": _load_shared,
    "SHFL": _shuffle,
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
    "P2R": _pack_predicates,
    "R2P": _unpack_predicates,
}
"""By base name."""

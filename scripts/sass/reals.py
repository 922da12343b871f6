"""What the floating-point instructions of sm_90 do: f32, f64, and pairs of halves in a word."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from scripts.sass.parse import Instruction, Operand
from scripts.sass.thread import Meaning, Thread
from scripts.sass.words import (
    M32,
    M64,
    bf16_bits,
    double_of,
    f16_bits,
    half_of,
    real_of,
    signed,
    word_of,
    words_of,
)

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def _reals(function: Callable[..., float], sources: int) -> Meaning:
    def meaning(t: Thread, i: Instruction) -> None:
        t.put(i.operands[0], _real(function, [t.real(o) for o in i.operands[1 : 1 + sources]]))

    return meaning


def _real(function: Callable[..., float], values: Sequence[float | None]) -> int | None:
    if any(value is None for value in values):
        return None
    try:
        return word_of(function(*values))
    except (OverflowError, ZeroDivisionError, ValueError):
        return 0x7FC00000


def _doubles(function: Callable[..., float], sources: int) -> Meaning:
    def meaning(t: Thread, i: Instruction) -> None:
        values: list[Any] = [t.double(o) for o in i.operands[1 : 1 + sources]]
        known = not any(value is None for value in values)
        t.put(i.operands[0], *words_of(function(*values) if known else None))

    return meaning


def combine(t: Thread, i: Instruction, first: bool | None) -> None:
    """The two results of a comparison, each with the predicate that comes as the third source."""
    other = t.truth(i.operands[4])
    how = next(m for m in i.modifiers if m in ("AND", "OR", "XOR"))
    for to, value in zip(
        i.operands[:2], (first, None if first is None else not first), strict=True
    ):
        if how == "AND" and False in (value, other):
            t.decide(to, False)
        elif how == "OR" and True in (value, other):
            t.decide(to, True)
        elif value is None or other is None:
            t.decide(to, None)
        else:
            t.decide(to, value != other if how == "XOR" else value)


def _select_real(t: Thread, i: Instruction) -> None:
    truth = t.truth(i.operands[3])
    a, b = (word_of(t.real(o)) for o in i.operands[1:3])
    t.put(i.operands[0], (a if a == b else None) if truth is None else a if truth else b)


def _compare_reals(t: Thread, i: Instruction) -> None:
    read = t.double if i.base == "DSETP" else t.real
    a, b = (read(o) for o in i.operands[2:4])
    first: bool | None = None
    if a is not None and b is not None:
        how = i.modifiers[0]
        unordered = math.isnan(a) or math.isnan(b)
        if how in ("NAN", "NUM"):
            first = unordered == (how == "NAN")
        else:
            with_nan = how.endswith("U")
            first = with_nan if unordered else COMPARISONS[how.removesuffix("U")](a, b)
    combine(t, i, first)


def _multiply_add_real(t: Thread, i: Instruction) -> None:
    def function(a: float, b: float, c: float) -> float:
        value = a * b + c
        return min(1.0, max(0.0, value)) if "SAT" in i.modifiers else value

    t.put(i.operands[0], _real(function, [t.real(o) for o in i.operands[1:4]]))


def _packed_minimum(t: Thread, i: Instruction) -> None:
    """Of two words, or three."""
    truth = t.truth(i.operands[-1])
    pairs = [_halves(t, o, _is_bf16(i)) for o in i.operands[1:-1]]
    known = [pair for pair in pairs if pair is not None]
    if truth is None or len(known) < len(pairs):
        return t.put(i.operands[0], None)
    bits = bf16_bits if _is_bf16(i) else f16_bits
    low, high = (bits((min if truth else max)(pair[half] for pair in known)) for half in (0, 1))
    return t.put(i.operands[0], high << 16 | low)


def _minimum(t: Thread, i: Instruction) -> None:
    truth = t.truth(i.operands[3])
    pick = min if truth else max
    values = [t.real(o) for o in i.operands[1:3]]
    t.put(i.operands[0], None if truth is None else _real(pick, values))


_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "RCP": lambda a: 1 / a if a else math.inf,
    "RSQ": lambda a: 1 / math.sqrt(a) if a > 0 else math.inf,
    "EX2": lambda a: 2.0**a,
    "LG2": math.log2,
    "SQRT": math.sqrt,
    "TANH": math.tanh,
    "SIN": math.sin,
    "COS": math.cos,
}


def _function(t: Thread, i: Instruction) -> None:
    how = i.modifiers[0]
    if how.endswith("64H"):  # of an f64 whose high word alone is read and written
        high = t.integer(i.operands[1])
        value = double_of(0, high)
        function = _FUNCTIONS[how.removesuffix("64H")]
        t.put(i.operands[0], None if value is None else words_of(function(value))[1])
    else:
        t.put(i.operands[0], _real(_FUNCTIONS[how], [t.real(i.operands[1])]))


def _to_real(t: Thread, i: Instruction) -> None:
    """I2F."""
    source = i.operands[1]
    wide = {"U64", "S64"} & {*i.modifiers}
    value = t.pair(source) if wide else t.integer(source)
    if value is not None and not {"U64", "U32", "U16", "U8"} & {*i.modifiers}:
        value = signed(value)
    if "F64" in i.modifiers:
        return t.put(i.operands[0], *words_of(None if value is None else float(value)))
    word = None if value is None else word_of(float(value))
    real = real_of(word)
    if "RP" in i.modifiers and real is not None and value is not None and real < value:
        word = (word or 0) + 1
    return t.put(i.operands[0], word)


def _to_integer(t: Thread, i: Instruction) -> None:
    """F2I."""
    value = t.real(i.operands[1])
    if value is None or not math.isfinite(value):
        return t.put(i.operands[0], None)
    rounding = {"TRUNC": math.trunc, "FLOOR": math.floor, "CEIL": math.ceil}
    whole = next((rounding[m] for m in i.modifiers if m in rounding), round)(value)
    if "U64" in i.modifiers:
        whole = max(0, min(M64, whole))
        return t.put(i.operands[0], whole & M32, whole >> 32)
    least, most = (0, M32) if "U32" in i.modifiers else (-(2**31), 2**31 - 1)
    if "S8" in i.modifiers:
        least, most = -128, 127
    return t.put(i.operands[0], max(least, min(most, whole)) & M32)


def _convert(t: Thread, i: Instruction) -> None:
    """F2F: between two floating types."""
    to, source = [m for m in i.modifiers if m in ("F16", "BF16", "F32", "F64")][:2]
    o = i.operands[1]
    if source == "F64":
        value = t.double(o)
    elif source == "F32":
        value = t.real(o)
    else:
        word = t.word(o)
        value = None if word is None else half_of(word & 0xFFFF, source == "BF16")
    if to == "F64":
        return t.put(i.operands[0], *words_of(value))
    how = {"F16": f16_bits, "BF16": bf16_bits, "F32": word_of}[to]
    return t.put(i.operands[0], None if value is None else how(value))


def _convert_pair(t: Thread, i: Instruction) -> None:
    """F2FP: two f32 into the halves of a word. What codes are (F2IP, too) is not computed."""
    if {"E4M3", "E5M2", "S8"} & {*i.modifiers}:
        return t.put(i.operands[0], 0x3838)
    high, low = t.real(i.operands[1]), t.real(i.operands[2])
    if high is None or low is None:
        return t.put(i.operands[0], None)
    bits = bf16_bits if "BF16" in i.modifiers else f16_bits
    return t.put(i.operands[0], bits(high) << 16 | bits(low))


def _is_bf16(i: Instruction) -> bool:
    return any(m.startswith("BF16") for m in i.modifiers)


def _halves(t: Thread, o: Operand, bf16: bool) -> tuple[float, float] | None:
    word = t.word(o)
    if word is None:
        return None
    if o.kind == "real":
        return o.value, o.value
    low, high = word & 0xFFFF, word >> 16
    if "H0_H0" in o.suffixes:
        high = low
    if "H1_H1" in o.suffixes:
        low = high
    pair = half_of(low, bf16), half_of(high, bf16)
    if o.absolute:
        pair = abs(pair[0]), abs(pair[1])
    return (-pair[0], -pair[1]) if o.negate else pair


def _packed(function: Callable[..., float], sources: int) -> Meaning:
    """Arithmetic of both halves of a word; two immediates stand for the halves of one operand."""

    def meaning(t: Thread, i: Instruction) -> None:
        bf16 = _is_bf16(i)
        operands = i.operands[1:]
        values: list[tuple[float, float] | None] = []
        while operands:
            o = operands.pop(0)
            if o.kind == "real" and operands and operands[0].kind == "real":
                both = [p.value for p in (operands.pop(0), o)]
                values.append((both[0], both[1]))
            elif o.kind != "predicate":
                values.append(_halves(t, o, bf16))
        if "F32" in i.modifiers:  # the conversion of a half
            first = values[0] if values[0] not in ((0.0, 0.0), None) else values[-1]
            return t.put(i.operands[0], None if first is None else word_of(first[0]))
        if any(value is None for value in values[:sources]):
            return t.put(i.operands[0], None)
        known = [value for value in values[:sources] if value is not None]
        bits = bf16_bits if bf16 else f16_bits
        low, high = (bits(function(*(value[half] for value in known))) for half in (0, 1))
        return t.put(i.operands[0], high << 16 | low)

    return meaning


REALS: dict[str, Meaning] = {
    "FSEL": _select_real,
    "FADD": _reals(lambda a, b: a + b, 2),
    "FMUL": _reals(lambda a, b: a * b, 2),
    "FFMA": _multiply_add_real,
    "FMNMX": _minimum,
    **dict.fromkeys(("HMNMX2", "VHMNMX"), _packed_minimum),
    "FSETP": _compare_reals,
    "DSETP": _compare_reals,
    "FCHK": lambda t, i: t.decide(i.operands[0], False),
    "MUFU": _function,
    **dict.fromkeys(("I2F", "I2FP"), _to_real),
    "F2I": _to_integer,
    "F2F": _convert,
    **dict.fromkeys(("F2FP", "F2IP"), _convert_pair),
    "HADD2": _packed(lambda a, b: a + b, 2),
    "HMUL2": _packed(lambda a, b: a * b, 2),
    "HFMA2": _packed(lambda a, b, c: a * b + c, 3),
    "DADD": _doubles(lambda a, b: a + b, 2),
    "DMUL": _doubles(lambda a, b: a * b, 2),
    "DFMA": _doubles(lambda a, b, c: a * b + c, 3),
}

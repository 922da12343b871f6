"""32-bit words as numbers: a register holds an int below 2**32, or None when that is unknown."""

from __future__ import annotations

import math
import struct

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def signed(word: int) -> int:
    return (word & M32) - ((word & 0x80000000) << 1)


def real_of(word: int | None) -> float | None:
    """The f32 of a word."""
    if word is None:
        return None
    return float(struct.unpack("<f", struct.pack("<I", word & M32))[0])


def word_of(real: float | None) -> int | None:
    """The word of an f32, rounded; infinite where it overflows."""
    if real is None:
        return None
    try:
        return int(struct.unpack("<I", struct.pack("<f", real))[0])
    except OverflowError:
        return 0x7F800000 if real > 0 else 0xFF800000


def double_of(low: int | None, high: int | None) -> float | None:
    if low is None or high is None:
        return None
    return float(struct.unpack("<d", struct.pack("<Q", high << 32 | low))[0])


def words_of(double: float | None) -> tuple[int | None, int | None]:
    """The low and the high word of an f64."""
    if double is None:
        return None, None
    bits = struct.unpack("<Q", struct.pack("<d", double))[0]
    return bits & M32, bits >> 32


def bf16_bits(real: float) -> int:
    if math.isnan(real):
        return 0x7FFF
    word = word_of(real) or 0
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF


def f16_bits(real: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", real))[0])
    except OverflowError:
        return 0x7C00 if real > 0 else 0xFC00


def half_of(bits: int, bf16: bool) -> float:
    """The number of 16 bits."""
    if bf16:
        return real_of(bits << 16) or 0.0
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])

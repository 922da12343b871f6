"""Names from a model file: escaped, and collapsed to a few lines."""

from __future__ import annotations

import math

import pytest

from rmsnorm_export.printable import collapse, family, number, one_line, printable, quoted, short


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/model/layers.0/Mul_1", "/model/layers.0/Mul_1"),
        ("größe 層", "größe 層"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
    ],
)
def test_printable(name: str, expected: str) -> None:
    assert printable(name) == expected


def test_short() -> None:
    for name, expected in (("a\nb\x1b[2J", r"a\nb\x1b[2J"), (b"n\xff\xfe", r"n\xff\xfe")):
        assert (short(name), quoted(name)) == (expected, f"'{expected}'")
    assert short("x" * 100) == "x" * 100
    assert short("x" * 101) == "x" * 97 + "..."


def test_families_lines_and_numbers() -> None:
    assert family("layers.0.norm_1") == family("layers.10.norm_7") != family("layers.0.norm")
    assert one_line(" a\n  b\x1b ") == "a b\\x1b"
    assert len(one_line("x" * 10_000)) == 2000
    numbers = [number(value) for value in (0.0, 3.0, 0.123456, 1e9, math.inf)]
    assert numbers == ["0", "3", "0.123", "1e+09", "inf"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["a"], ["a"]),
        (["a0", "a1", "a2"], ["a{0-2}"]),
        (["l.9.n_1", "l.10.n_1", "l.8.n_1"], ["l.{8-10}.n_1"]),
        (["a0", "a2"], ["a{0, 2}"]),
        (["m_1", "m_4", "m_7", "m_10", "m_13"], ["m_{1 .. 13} (5)"]),
        (["a0", "b0", "a0", "a1"], ["a{0-1}", "b0"]),
        (["l.0.n_3", "l.1.n_5"], ["l.0.n_3 .. l.1.n_5 (2)"]),
        (["x00", "x1"], ["x{1, 00}"]),
        (["x" + "9" * 5000, "x1"], ["x{1, " + "9" * 5000 + "}"]),
        (["\x1b0", "\x1b1"], ["\\x1b{0-1}"]),
    ],
)
def test_collapse(names: list[str], expected: list[str]) -> None:
    assert collapse(names) == expected

"""Names and numbers as people read them; names from a model file are made fit for a terminal."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NUMBERS = re.compile(r"([0-9]+)")


def printable(text: str) -> str:
    """Return a text on one line, with every character that could steer a terminal escaped.

    Control and format characters (escape sequences, line breaks, bidirectional overrides, lone
    surrogates) become backslash escapes; everything else, a plain space included, stays. A model
    file may hold any string as a node name.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def short(text: str | bytes, limit: int = 100) -> str:
    """Return at most ``limit`` characters of a text, made printable.

    protobuf hands over a string that is not UTF-8 as bytes.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return printable(text if len(text) <= limit else text[: limit - 3] + "...")


def quoted(text: str | bytes, limit: int = 100) -> str:
    """Return ``short`` in single quotes."""
    return f"'{short(text, limit)}'"


def one_line(text: str, limit: int = 2000) -> str:
    """Return prose on one line: line breaks become spaces, and what is beyond ``limit`` is cut."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 4] + " ..."


def first_line(error: BaseException, limit: int = 300, *, otherwise: str = "no message") -> str:
    """Return the first line of an exception's message that is not blank, or another text."""
    lines = (_COLOURS.sub("", line).strip() for line in str(error).splitlines())
    return next((line[:limit] for line in lines if line), otherwise)


def family(name: str) -> tuple[str, ...]:
    """Return what a name shares with names that differ from it in numbers only."""
    return tuple(_NUMBERS.split(name)[0::2])


def collapse(names: Iterable[str]) -> list[str]:
    """Write names that differ in one number as one: ``layers.{0-31}.norm``.

    Consecutive numbers are written ``{first-last}``, others ``{first .. last}`` followed by the
    count. Names that differ in several numbers are written ``first .. last`` with the count. The
    order is that of each family's first member; every name is made printable.
    """
    families: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        families.setdefault(family(name), []).append(_NUMBERS.split(name))
    return [_collapse_family(members) for members in families.values()]


def _collapse_family(members: list[list[str]]) -> str:
    """Return one line for names that are equal but for their numbers (the odd entries)."""
    first, last = members[0], members[-1]
    varying = [i for i in range(1, len(first), 2) if len({m[i] for m in members}) > 1]
    if len(members) == 1:
        return printable("".join(first))
    if len(varying) != 1:
        return printable(f"{''.join(first)} .. {''.join(last)} ({len(members)})")
    at = varying[0]
    numbers = sorted((m[at] for m in members), key=lambda digits: (len(digits), digits))
    before, after = "".join(first[:at]), "".join(first[at + 1 :])
    pairs = itertools.pairwise(numbers)
    if len(numbers[-1]) < 18 and all(int(two) == int(one) + 1 for one, two in pairs):
        return printable(f"{before}{{{numbers[0]}-{numbers[-1]}}}{after}")
    if len(numbers) <= 4:
        return printable(f"{before}{{{', '.join(numbers)}}}{after}")
    return printable(f"{before}{{{numbers[0]} .. {numbers[-1]}}}{after} ({len(numbers)})")


def number(value: float) -> str:
    """Write a measured number: three significant digits, integers as such."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """Write ``1 norm``, ``2 norms``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return ``did you mean 'ort'? ``, to begin a fix with; "" where no name is near.

    The first that ``name`` abbreviates, as ort does onnxruntime; or else one spelled alike.
    """
    near = [one for one in names if _abbreviates(name, one)]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean {quoted(near[0])}? " if near else ""


def _abbreviates(short_name: str, name: str) -> bool:
    """Return whether the first letter and others of a name, in order, are ``short_name``."""
    rest = iter(name)
    return short_name[:1] == name[:1] and all(letter in rest for letter in short_name)

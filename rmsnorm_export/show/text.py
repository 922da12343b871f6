"""Lines and tables, of which a result consists for people, and their form in a terminal.

Logs get grepped, so that no line is broken and no name shortened. Whatever a model holds is made
printable here, where lines become text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from rmsnorm_export.printable import collapse, one_line, printable
from rmsnorm_export.system.provenance import FileState, Provenance

Item = TypeVar("Item")

Line = str | tuple[str, str]
"""A line of text, or a line and the style of the whole of it, a key of ``STYLES``."""

FAMILIES = 4
"""Families of names shown per group, and kinds of finding; a real model has one or two."""

STYLES: dict[str, dict[str, Any]] = {
    "": {},
    "bold": {"bold": True},
    "head": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green", "bold": True},
    "warn": {"fg": "yellow", "bold": True},
    "bad": {"fg": "red", "bold": True},
}
"""Style of a line -> how click shows it. A page has a class for each; a head begins a section."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows below heads.

    Attributes:
        title: above it.
        heads: of the columns.
        rows: as many texts as heads.
        numbers: heads of columns of numbers.
        styles: of the rows; fewer than rows: the others have none.
        folded: closed on a page at first.
        bars: of each row, the ends of an interval around a length: drawn on a page, from 0 on.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    styles: Sequence[str] = ()
    folded: bool = False
    bars: Sequence[tuple[float, float, float]] = ()
    kind: ClassVar[str] = "table"

    def lines(self) -> list[Line]:
        """Return it as a terminal shows it, or nothing where it has no rows."""
        if not self.rows:
            return []
        right = [i for i, head in enumerate(self.heads) if head in self.numbers]
        heads, *rows = aligned([self.heads, *self.rows], right=right)
        styles = [*self.styles, *([""] * (len(rows) - len(self.styles)))]
        title = [(self.title, "bold")] if self.title else []
        return ["", *title, (heads, "bold"), *zip(rows, styles, strict=True)]


Block = Line | Table


def text_of(line: Line) -> str:
    """Return a line without its style, safe to print."""
    return printable(line if isinstance(line, str) else line[0]).rstrip()


def style_of(line: Line) -> str:
    """Return the style of a line, or ""."""
    return "" if isinstance(line, str) else line[1]


def flat(blocks: Iterable[Block]) -> list[Line]:
    """Return the lines of blocks, of tables, too."""
    lines: list[Line] = []
    for block in blocks:
        lines += block.lines() if isinstance(block, Table) else [block]
    return lines


def render(blocks: Iterable[Block], *, styled: bool = False) -> str:
    """Return blocks as one string, with terminal styles where they are asked for."""
    import click

    texts = []
    for line in flat(blocks):
        style = STYLES[style_of(line)] if styled else {}
        texts.append(click.style(text_of(line), **style) if style else text_of(line))
    return "".join(f"{text}\n" for text in texts)


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """Return rows with aligned columns, those in ``right`` to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def name_lines(names: Iterable[str], label: str = "nodes") -> list[Line]:
    """Return the families of names, one a line, the label in front of the first."""
    families = collapse(names)
    lines: list[Line] = [
        f"      {'' if i else label:5}  {name}" for i, name in enumerate(families[:FAMILIES])
    ]
    if len(families) > FAMILIES:
        lines.append(f"             and {len(families) - FAMILIES} more kinds (-v lists all)")
    return lines


def note_lines(notes: Iterable[str]) -> list[Line]:
    """Return a line each, as ``note: ...``."""
    return [f"note: {one_line(note)}" for note in notes]


def titled(title: str, lines: Sequence[Item]) -> list[Item | Line]:
    """Return lines or blocks below a title, or nothing where there are none."""
    return ["", (title, "head"), *lines] if lines else []


def ending(output: Sequence[Line], verbose: int) -> list[Line]:
    """Return the lines that say where the output went, with a title beside other titles."""
    return titled("output", output) if verbose > 0 or not output else ["", *output]


def under(name: str, blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks of a part below its name, which stands before each title in them, too."""
    named = (
        (f"{name}: {one[0]}", "head") if isinstance(one, tuple) and one[1] == "head" else one
        for one in blocks
    )
    return ["", (name, "head"), *named]


def provenance_lines(made: Provenance) -> list[Line]:
    """Return what a report says of its making."""
    return [
        "  " + ", ".join(f"{name} {version}" for name, version in made.versions.items()),
        f"  {made.date}",
        f"  {one_line(made.command)}",
        *(f"  read   {_file_text(file)}" for file in made.inputs),
        *(f"  wrote  {_file_text(file)}" for file in made.outputs),
    ]


def _file_text(file: FileState) -> str:
    return f"{file.path}, {file.bytes:,} bytes, sha256 {file.sha256}"


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return items of one key together, the largest group first."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.values(), key=len, reverse=True)


def badness(value: float) -> float:
    """Order measurements for the worst of them: what is not a number is worse than all."""
    return math.inf if math.isnan(value) else value

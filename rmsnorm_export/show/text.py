"""Lines of text for a person: aligned, continued between words on a terminal, and never cut.

Logs get grepped, so no name is shortened; what comes from a model is made printable before.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rmsnorm_export.printable import collapse, one_line, printable
from rmsnorm_export.system.provenance import FileState, Provenance

if TYPE_CHECKING:
    from rich.text import Text

Item = TypeVar("Item")

Line = str | tuple[str, str]
"""A line of text, or a line and the rich style of the whole of it."""

Verdict = tuple[str, str]
"""The line that says it all, and its kind: ``good``, ``warn``, ``bad`` or ""."""

FAMILIES = 4
"""Families of names shown per group, and kinds of finding; a real model has one or two."""

_KIND_STYLES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red", "": "bold"}

_LABEL = re.compile(r"( +(\d+ x|[a-z]{3,5}) {2,3}| {13})(?=\S)")
"""What the continuation of a line hangs under: a count, a label, or the place below a label."""


def text_of(line: Line) -> str:
    """A line without its style."""
    return line if isinstance(line, str) else line[0]


def rich_text(lines: Iterable[Line]) -> Text:
    """``lines`` as one text with styles, for rich."""
    from rich.text import Text

    styled = [Text(*((line,) if isinstance(line, str) else line)) for line in lines]
    return Text("\n").join(styled)


def render(lines: Iterable[Line], *, styled: bool = False, width: int | None = None) -> str:
    """``lines`` as one string.

    Args:
        lines: what to print.
        styled: with terminal styles.
        width: of a terminal: longer lines are continued, indented, between words. None: no line is
            broken, so that a log can be searched. Nothing is ever cut.
    """
    # ``doctor`` says what is wrong with an installation in which rich is missing, too.
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=styled,
        color_system="standard" if styled else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for line in lines:
        text, style = (line, "") if isinstance(line, str) else line
        for part in [text.rstrip()] if width is None else _continued(text, width):
            console.print(Text(part, style=style), soft_wrap=True)
    return buffer.getvalue()


def _continued(text: str, width: int) -> list[str]:
    """``text`` in lines of ``width``, unless a single word is longer.

    They go on under what follows a label or a count, else a little to the right.
    """
    label = _LABEL.match(text)
    indent = " " * (label.end() if label else len(text) - len(text.lstrip()) + 4)
    wrapped = textwrap.wrap(
        text.rstrip(),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped or [""]


def headline(verdict: Verdict) -> Line:
    """The first line, in the colour of its kind."""
    text, kind = verdict
    return text, _KIND_STYLES[kind]


def kind_of_line(line: Line) -> str:
    """The kind of the verdict that ``headline`` has made a line of; "" for another line."""
    style = "" if isinstance(line, str) else line[1]
    return next((kind for kind, known in _KIND_STYLES.items() if known == style), "")


def table(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "  "
) -> list[str]:
    """``rows`` with aligned columns, those in ``right`` to the right; the last is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def name_lines(names: Iterable[str], label: str = "nodes") -> list[Line]:
    """The families of ``names``, one a line, the label in front of the first."""
    families = collapse(names)
    lines: list[Line] = [
        f"      {'' if i else label:5}  {name}" for i, name in enumerate(families[:FAMILIES])
    ]
    if len(families) > FAMILIES:
        lines.append(f"             and {len(families) - FAMILIES} more kinds (-v lists all)")
    return lines


def note_lines(notes: Iterable[str], indent: str = "") -> list[Line]:
    """A line each, as ``note: ...``."""
    return [f"{indent}note: {one_line(note)}" for note in notes]


def file_text(file: FileState) -> str:
    """A file of a report on one line."""
    return f"{printable(file.path)}, {file.bytes:,} bytes, sha256 {file.sha256}"


def provenance_lines(made: Provenance) -> list[Line]:
    """What a report says of its making."""
    versions = "".join(f", {name} {version}" for name, version in made.versions.items())
    return [
        "",
        ("made by", "bold"),
        f"  {made.tool}{versions}, Python {made.python}, {made.platform}",
        f"  {made.date}",
        f"  {one_line(made.command)}",
        *(f"  read   {file_text(file)}" for file in made.inputs),
        *(f"  wrote  {file_text(file)}" for file in made.outputs),
    ]


def provenance_facts(made: Provenance) -> list[tuple[str, str | list[str]]]:
    """Return the same for the summary of a page."""
    versions = [f"{name} {version}" for name, version in made.versions.items()]
    return [
        ("Files read", [file_text(file) for file in made.inputs]),
        ("Files written", [file_text(file) for file in made.outputs]),
        ("Command", one_line(made.command)),
        ("Versions", ", ".join([made.tool, *versions, f"Python {made.python}", made.platform])),
        ("Date", made.date),
    ]


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Items of one key together, the largest group first."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.values(), key=len, reverse=True)


def badness(value: float) -> float:
    """Order for the worst of some measurements: what is not a number is worse than all."""
    return math.inf if math.isnan(value) else value


def largest(values: Iterable[float]) -> float:
    """The worst of some measurements."""
    return max(values, key=badness)

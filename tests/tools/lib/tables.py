"""Tables for a page and for the terminal, from the same headings and rows.

A heading that ends with a colon stands over numbers: its column is aligned to the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 150
"""Of a table in a pipe, which has none: rich would fold it to 80 columns."""


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    names = [heading.removesuffix(":").replace("\n", " ").strip() for heading in headings]
    marks = ["---:" if heading.endswith(":") else "---" for heading in headings]
    return [
        f"| {' | '.join(names)} |",
        f"|{'|'.join(marks)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def console() -> Console:
    """Standard output, wide enough for a table."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDTH)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    above: Sequence[str] = (),
    below: Sequence[str] = (),
    same: int = 1,
) -> None:
    """Print a table on stdout.

    Args:
        headings, rows: of it.
        above, below: lines around it.
        same: the first cells of a row that are left out where they are those of the row before.
    """
    from rich import box
    from rich.table import Table

    terminal = console()
    for line in above:
        terminal.print(line, markup=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        right = heading.endswith(":")
        name = heading.removesuffix(":")
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    previous: list[str] = []
    for row in rows:
        first = list(row[:same])
        if previous and previous != first:
            table.add_section()
        table.add_row(*(first if previous != first else [""] * same), *row[same:])
        previous = first
    terminal.print(table)
    for line in below:
        terminal.print(line, markup=False)

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
    """Return the lines of a Markdown table."""
    names = [heading.removesuffix(":").replace("\n", " ").strip() for heading in headings]
    marks = ["---:" if heading.endswith(":") else "---" for heading in headings]
    lines = [f"| {' | '.join(row)} |" for row in (names, *rows)]
    return [lines[0], f"|{'|'.join(marks)}|", *lines[1:]]


def console() -> Console:
    """Return standard output, wide enough for a table."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDTH)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    above: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print a table on stdout, and the lines around it."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        right = heading.endswith(":")
        justify = "right" if right else "left"
        table.add_column(heading.removesuffix(":"), justify=justify, no_wrap=right)
    for row in rows:
        table.add_row(*row)
    terminal = console()
    terminal.print(*above, sep="\n", markup=False)
    terminal.print(table)
    terminal.print(*below, sep="\n", markup=False)

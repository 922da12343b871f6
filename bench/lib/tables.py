"""Tables for a page and for the terminal, from the same headings and rows.

A heading that ends with a colon stands over numbers: its column is aligned to the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmsnorm_export.show.text import aligned


def _names(headings: Sequence[str]) -> list[str]:
    return [heading.removesuffix(":").replace("\n", " ").strip() for heading in headings]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    marks = ["---:" if heading.endswith(":") else "---" for heading in headings]
    lines = [f"| {' | '.join(row)} |" for row in (_names(headings), *rows)]
    return [lines[0], f"|{'|'.join(marks)}|", *lines[1:]]


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    above: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print a table on stdout, and the lines around it."""
    right = [index for index, heading in enumerate(headings) if heading.endswith(":")]
    table = aligned([_names(headings), *rows], right=right, indent="")
    print(*above, "", *table, "", *below, sep="\n")

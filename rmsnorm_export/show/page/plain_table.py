"""A table that is neither sorted nor filtered: headings, rows, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.show.page.markup import Markup, join, many, scroller, tag

_ROWS = 2000
"""Rows that are shown."""


def plain_table(
    caption: str, heads: Sequence[str], rows: Sequence[Markup], numbers: Sequence[str] = ()
) -> Markup:
    """The table, in a box that scrolls.

    Args:
        caption: what it is, for those who do not see it.
        heads: of the columns.
        rows: ``tr`` elements.
        numbers: heads of columns of numbers.
    """
    cells = [tag("th", h, scope="col", class_="num" if h in numbers else None) for h in heads]
    table = tag(
        "table",
        tag("caption", caption, class_="hidden"),
        tag("thead", tag("tr", *cells)),
        tag("tbody", *rows[:_ROWS]),
    )
    rest = len(rows) - _ROWS
    more = tag("p", f"and {many(rest, 'more row')}", class_="note") if rest > 0 else None
    return join([scroller(caption, table), more])

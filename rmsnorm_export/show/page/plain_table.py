"""Tables that are neither sorted nor filtered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rmsnorm_export.show.page.markup import Content, Markup, scroller, tag


def bare_table(
    caption: Content,
    heads: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    numbers: Collection[Content] = (),
    class_: str | None = "wrap",
    captioned: str | None = None,
) -> Markup:
    """A table as wide as its text, below its caption.

    Args:
        caption: what it is.
        heads: of the columns; "" above a column of names.
        rows: as many pieces of content as there are heads; the first is the name of the row.
        numbers: heads of columns of numbers.
        class_: of the table.
        captioned: class of the caption.
    """
    classes = ["num" if head in numbers else None for head in heads]
    titles = (
        tag("th", head, scope="col", class_=kind) if head else tag("td")
        for head, kind in zip(heads, classes, strict=True)
    )
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(
                tag("td", cell, class_=kind)
                for cell, kind in zip(row[1:], classes[1:], strict=True)
            ),
        )
        for row in rows
    )
    return tag(
        "table",
        tag("caption", caption, class_=captioned),
        tag("thead", tag("tr", *titles)),
        tag("tbody", *body),
        class_=class_,
    )


def plain_table(
    caption: str,
    heads: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    numbers: Collection[Content] = (),
) -> Markup:
    """``bare_table`` in a box that scrolls; its caption is for those who do not see it."""
    table = bare_table(caption, heads, rows, numbers=numbers, class_=None, captioned="hidden")
    return scroller(caption, table)

"""A result as its verdict, its tables and its text: within a notebook, and as a page where it has
none of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rmsnorm_export.show.page.document import About, document, summary
from rmsnorm_export.show.page.markup import Markup, facts, join, scroller, tag
from rmsnorm_export.show.text import Line, Verdict, kind_of_line, text_of

_STYLE = """
.rmsnorm-export { overflow-x: auto; }
.rmsnorm-export p { margin: 2px 0; font-weight: 600; }
.rmsnorm-export table { margin: 6px 0; }
.rmsnorm-export th, .rmsnorm-export td { text-align: left; vertical-align: top; }
.rmsnorm-export .num { text-align: right; }
.rmsnorm-export pre { white-space: pre; font-size: 12px; line-height: 1.35; overflow-x: auto; }
"""


def fragment(verdict: Iterable[Line], tables: Sequence[Markup], lines: Sequence[Line]) -> Markup:
    """An element for a notebook: small, with a style of its own and no script.

    Args:
        verdict: what it comes to.
        tables: of what was found; without any the text is open.
        lines: the whole as text.
    """
    text = tag("pre", join(map(text_of, lines), "\n"))
    rest = tag("details", tag("summary", "as text"), text) if tables else text
    heads = (tag("p", text_of(line).strip()) for line in verdict)
    return tag("div", tag("style", Markup(_STYLE)), *heads, *tables, rest, class_="rmsnorm-export")


def plain_page(name: str, lines: Sequence[Line], tables: Sequence[Markup], about: About) -> str:
    """A page of a result whose class is ``name``."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
    verdicts: list[Verdict] = [(text_of(line).strip(), kind_of_line(line)) for line in lines[:1]]
    text = scroller("Text", tag("pre", join(map(text_of, lines[1:]), "\n")))
    parts = [scroller(f"Table {i}", table) for i, table in enumerate(tables, 1)]
    made = facts(about.pairs(), "facts wide")
    return document(title, "", [summary(verdicts, about, *parts, text, made)])

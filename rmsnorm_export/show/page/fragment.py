"""A result within a notebook: small, with a style of its own and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmsnorm_export.show.page.markup import Markup, join, tag
from rmsnorm_export.show.text import Line, text_of

_STYLE = """
.rmsnorm-export { overflow-x: auto; }
.rmsnorm-export p { margin: 2px 0; font-weight: 600; }
.rmsnorm-export table { margin: 6px 0; }
.rmsnorm-export th, .rmsnorm-export td { text-align: left; vertical-align: top; }
.rmsnorm-export .num { text-align: right; }
.rmsnorm-export pre { white-space: pre; font-size: 12px; line-height: 1.35; overflow-x: auto; }
"""


def fragment(verdict: Iterable[Line], tables: Sequence[Markup], lines: Sequence[Line]) -> Markup:
    """An element for a notebook.

    Args:
        verdict: what it comes to.
        tables: of what was found; without any the text is open.
        lines: the whole as text.
    """
    text = tag("pre", join(map(text_of, lines), "\n"))
    rest = tag("details", tag("summary", "as text"), text) if tables else text
    heads = (tag("p", text_of(line).strip()) for line in verdict)
    return tag("div", tag("style", Markup(_STYLE)), *heads, *tables, rest, class_="rmsnorm-export")

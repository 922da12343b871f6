"""HTML from values: whatever is not ``Markup`` is escaped, so that no model can write a tag.

Text from a model goes through ``printable`` first: control characters, bidirectional overrides and
lone surrogates become visible backslash escapes. Attribute values are quoted always.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from rmsnorm_export.op.numerics import NUMERICS_MEANING
from rmsnorm_export.printable import one_line, plural, printable

LONGEST = 400
"""Characters shown of one name; a file may hold names of megabytes."""

ARROW = "\u2192"

_BREAKS = re.compile(r"(?<=[/.])(?=[^/.])")

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Markup(str):
    """HTML that is safe to write as it is."""

    __slots__ = ()


Content = str | int | None
"""A piece of content: ``Markup`` as it is, other text escaped, None nothing."""

Pairs = Iterable[tuple[str, Content]]
"""Names and values; a value of None is left out."""


def escape(text: str) -> Markup:
    """``text`` for content and for quoted attributes."""
    return Markup(html.escape(printable(text), quote=True))


def join(parts: Iterable[Content], between: str = "") -> Markup:
    """Pieces of content in a row; ``between`` is written as it is."""
    return Markup(between.join(_piece(part) for part in parts if part is not None))


def _piece(part: str | int) -> str:
    return part if isinstance(part, Markup) else escape(str(part))


def tag(
    element: str, /, *content: Content, **attributes: str | int | float | bool | None
) -> Markup:
    """An element.

    Args:
        element: its name, never from a model.
        content: in order.
        attributes: a trailing underscore is dropped (``class_``), others become hyphens
            (``aria_label``); None and False are left out, True is an attribute without a value.
    """
    words = [element]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if element in _VOID else f"{start}{join(content)}</{element}>")


def shortened(text: str, limit: int = LONGEST) -> str:
    """``text`` with its middle left out where it is longer than ``limit``, made printable."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}\u2026{text[-half:]}"
    return printable(text)


def code(text: str, limit: int = LONGEST) -> Markup:
    """A name from a model: monospace, isolated from the writing direction around it.

    It may be broken behind a slash or a dot before it is broken anywhere.
    """
    parts = _BREAKS.split(shortened(text, limit))
    return tag("code", join(parts, "<wbr>"))


def badge(word: str, kind: str = "") -> Markup:
    """A word in a frame; its colour only repeats what the word says."""
    kind = kind or (word if word in NUMERICS_MEANING else "plain")
    return tag("span", shortened(word, 40), class_=f"badge {kind}")


def facts(pairs: Pairs, class_: str = "facts") -> Markup:
    """A description list."""
    items = (
        tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value is not None
    )
    return tag("dl", *items, class_=class_)


def names(
    texts: Sequence[str], limit: int = LONGEST, *, most: int = 100, more: str = "", kind: str = "ul"
) -> Markup | None:
    """Names as ``code`` below each other; None without any.

    Args:
        texts: the names.
        limit: characters shown of one.
        most: names that are shown.
        more: what follows the number of further ones.
        kind: of the list: ``ul`` or ``ol``.
    """
    if not texts:
        return None
    items = [tag("li", code(text, limit)) for text in texts[:most]]
    if len(texts) > most:
        items.append(tag("li", f"and {len(texts) - most:,} more{more}"))
    return tag(kind, *items, class_="names")


def paragraphs(texts: Sequence[str]) -> Markup | None:
    """Sentences of a result, one below the other; None without any."""
    return join(tag("p", one_line(text)) for text in texts) if texts else None


def note(*content: Content) -> Markup:
    """A sentence aside."""
    return tag("p", *content, class_="note")


def more_of(count: int, noun: str) -> Markup | None:
    """That there are more than are shown; None where there are not."""
    return note(f"and {plural(count, f'more {noun}')}") if count > 0 else None


def scroller(label: str, *content: Content) -> Markup:
    """A container of its own scroll bar, reachable by keyboard, for what may be wide."""
    return tag("div", *content, class_="scroll", tabindex=0, role="group", aria_label=label)


def svg(
    *content: Content, width: str | int, height: str | int, class_: str | None = None
) -> Markup:
    """A picture, whose title and description are read out."""
    size = f"0 0 {width} {height}"
    return tag("svg", *content, class_=class_, role="img", width=width, height=height, viewBox=size)

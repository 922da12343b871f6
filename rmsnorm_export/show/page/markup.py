"""HTML from values: whatever is not ``Markup`` is escaped, so that no model can write a tag.

Text from a model goes through ``printable`` first: control characters, bidirectional overrides and
lone surrogates become visible backslash escapes. Attribute values are quoted always.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from rmsnorm_export.printable import printable

LONGEST = 400
"""Characters shown of one name; a file may hold names of megabytes."""

_BREAKS = re.compile(r"(?<=[/.])(?=[^/.])")

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Markup(str):
    """HTML that is safe to write as it is."""

    __slots__ = ()


Content = str | int | None
"""A piece of content: ``Markup`` as it is, other text escaped, None nothing."""


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


def facts(pairs: Iterable[tuple[str, Content]], class_: str = "facts") -> Markup:
    """A description list; pairs with None are left out."""
    items = (
        tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value is not None
    )
    return tag("dl", *items, class_=class_)


def scroller(label: str, *content: Content) -> Markup:
    """A container of its own scroll bar, reachable by keyboard, for what may be wide."""
    return tag("div", *content, class_="scroll", tabindex=0, role="region", aria_label=label)


def many(count: int, noun: str) -> str:
    """``3 sites``, ``1 site``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

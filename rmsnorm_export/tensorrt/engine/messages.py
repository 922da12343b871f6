"""Warnings of the parser and the builder, sorted by what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rmsnorm_export.printable import one_line
from rmsnorm_export.tensorrt.engine.result import Message, MessageKind, Stage

_KINDS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    ("half-norm", re.compile(r"layernorm (nodes|after self-attention).*(FP16|BF16)", re.I | re.S)),
    ("index-type", re.compile(r"has Int64 binding", re.I)),
    ("function-names", re.compile(r"A node named .* already exists", re.S)),
)
_PLACE = re.compile(r"^[\w.]+\.[ch]pp:\d+: ")
"""Source file and line in front of a message."""

LIMIT = 50
"""Different other messages that are kept."""


def collect(found: Iterable[tuple[Stage, str]]) -> tuple[Message, ...]:
    """Warnings of one kind once, with their number.

    Args:
        found: stage (``parse`` or ``build``) and text of each, in order.
    """
    groups: dict[tuple[str, str, str], Message] = {}
    for stage, text in found:
        text = one_line(_PLACE.sub("", text.strip()), 600)
        kind = kind_of(text)
        key = (stage, kind, text if kind == "other" else "")
        known = groups.get(key)
        if known is None and len(groups) >= LIMIT:
            continue
        first, count = (text, 0) if known is None else (known.text, known.count)
        groups[key] = Message(stage, kind, first, count + 1)
    return tuple(groups.values())


def kind_of(text: str) -> MessageKind:
    """What a warning is about."""
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), "other")

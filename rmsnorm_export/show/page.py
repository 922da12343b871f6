"""A result as a page: one file that loads nothing, rendered by one template from plain values.

Text from a model is made printable and shortened, then escaped by Jinja2; a content security
policy lets the page's own style apply, and nothing run or load.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from rmsnorm_export.printable import printable
from rmsnorm_export.show.text import Block, Line, Table, style_of, text_of

if TYPE_CHECKING:
    from jinja2 import Environment

LONGEST = 600
"""Characters shown of one text; a file may hold names of megabytes."""

MOST_ROWS = 2000
"""Rows of a table and lines of a text: beyond some thousands a browser takes seconds."""

SIGNS = {"good": "\u2713 ", "warn": "! ", "bad": "\u2717 "}


@dataclasses.dataclass(frozen=True, slots=True)
class _Text:
    """Lines as a terminal has them, each with its style."""

    lines: list[tuple[str, str]]
    kind: ClassVar[str] = "text"


@dataclasses.dataclass(frozen=True, slots=True)
class _Section:
    """A part of the page with an entry in the navigation; lines that follow each other are one."""

    title: str
    parts: list[_Text | Table]


def _sections(blocks: Iterable[Block], title: str) -> list[_Section]:
    """Return the sections that titles begin; ``title`` is that of what comes before the first."""
    sections = [_Section(title, [])]
    for block in blocks:
        parts = sections[-1].parts
        if isinstance(block, Table):
            parts.append(block)
        elif style_of(block) == "head":
            sections.append(_Section(text_of(block), []))
        elif parts and isinstance(last := parts[-1], _Text):
            last.lines.append((text_of(block), style_of(block)))
        elif text_of(block):
            parts.append(_Text([(text_of(block), style_of(block))]))
    return [one for one in sections if one.parts]


def _visible(value: Any) -> Any:
    """Make a text printable and short; what is safe already stays as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        half = LONGEST // 2
        cut = f"{value[: half - 1]}\u2026{value[-half:]}" if len(value) > LONGEST else value
        return printable(cut)
    return value


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("rmsnorm_export.show", "."),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(title: str, verdicts: Sequence[Line], blocks: Iterable[Block]) -> str:
    """Render a page as one HTML file.

    Args:
        title: what it is, e.g. ``Report``.
        verdicts: the lines that say it all.
        blocks: the rest.
    """
    style = resources.files("rmsnorm_export.show").joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    shown = [
        (SIGNS.get(style_of(one), ""), text_of(one).strip(), style_of(one)) for one in verdicts
    ]
    sections = _sections(blocks, "Summary")
    facts = {"title": title, "verdicts": shown, "sections": sections, "most": MOST_ROWS}
    template = _environment().get_template("page.html.j2")
    return template.render(facts, style=style, digest=digest)


def fragment(blocks: Iterable[Block]) -> str:
    """Render a result for a notebook."""
    template = _environment().get_template("fragment.html.j2")
    return template.render(sections=_sections(blocks, ""), most=MOST_ROWS)

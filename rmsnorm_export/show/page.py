"""A result as a page: one file that loads nothing, rendered by one template from plain values.

Text from a model is made printable and shortened, then escaped by Jinja2; a content security
policy lets the page's own style apply, and nothing run or load.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Collection, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from rmsnorm_export.printable import printable
from rmsnorm_export.show.arrange import Layout, shortened
from rmsnorm_export.show.text import Line, Verdict, kind_of_line, text_of

if TYPE_CHECKING:
    from jinja2 import Environment

LONGEST = 600
"""Characters shown of one text; a file may hold names of megabytes."""

MOST_ROWS = 2000
"""Rows of a table: beyond some thousands a browser takes seconds."""

SIGNS = {"good": "\u2713", "warn": "!", "bad": "\u2717", "": ""}


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Names and values; a value is a text or several, and an empty one is omitted."""

    pairs: Sequence[tuple[str, str | Sequence[str]]]
    kind: ClassVar[str] = "facts"


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows below heads.

    Attributes:
        title: its caption.
        heads: of the columns.
        rows: as many texts as heads; at most ``MOST_ROWS`` are shown, and how many are not.
        numbers: heads of columns of numbers.
        names: heads of columns of names from a model.
        folded: closed at first.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    names: Collection[str] = ()
    folded: bool = False
    kind: ClassVar[str] = "table"
    most: ClassVar[int] = MOST_ROWS


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """Lines as a terminal has them."""

    lines: Sequence[Line]
    kind: ClassVar[str] = "text"

    def styled(self) -> list[tuple[str, str]]:
        """Return each line with the kind of its verdict, or ""."""
        return [(text_of(line), kind_of_line(line)) for line in self.lines]


@dataclasses.dataclass(frozen=True, slots=True)
class Pictures:
    """The graph of a site, before and after.

    Attributes:
        sides: caption, picture, and the same in words.
        site: whose names and shapes are shown.
    """

    sides: Sequence[tuple[str, Layout, str]]
    site: str
    kind: ClassVar[str] = "pictures"


@dataclasses.dataclass(frozen=True, slots=True)
class Article:
    """Parts below a heading of their own."""

    title: str
    parts: Sequence[Part]
    note: str = ""
    kind: ClassVar[str] = "article"


Part = Facts | Table | Text | Pictures | Article


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with an entry in the navigation; ``note`` introduces it."""

    title: str
    parts: Sequence[Part]
    count: int | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """The facts about the making of a result, which it does not know itself.

    Attributes:
        facts: name and text: date, versions, command, files.
        problem: what / found / fix of the error that the run ended with.
    """

    facts: Sequence[tuple[str, str | Sequence[str]]] = ()
    problem: tuple[str, str, str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """All that the template shows.

    Attributes:
        title: what it is, e.g. ``RMSNorm report``.
        subject: what it is about: the path of a model.
        verdicts: the lines that say it all.
        numbers: what carries the verdict: number and what it counts.
        parts: of the summary.
        sections: the rest.
    """

    title: str
    subject: str
    verdicts: Sequence[Verdict]
    parts: Sequence[Part] = ()
    sections: Sequence[Section] = ()
    numbers: Sequence[tuple[str, str]] = ()


def _visible(value: Any) -> Any:
    """Make a text printable and short; what is safe already stays as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return shortened(value, LONGEST) if len(value) > LONGEST else printable(value)
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


@functools.cache
def _style() -> tuple[str, str]:
    """Return the page's style, and the hash under which a browser may apply it."""
    text = resources.files("rmsnorm_export.show").joinpath("page.css").read_text(encoding="utf-8")
    return text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render(page: Page, about: About) -> str:
    """Render a page as one HTML file."""
    style, digest = _style()
    template = _environment().get_template("page.html.j2")
    return template.render(page=page, about=about, style=style, digest=digest, signs=SIGNS)


def fragment(verdict: Sequence[Line], tables: Sequence[Table], lines: Sequence[Line]) -> str:
    """Render a result for a notebook: its verdict, its tables, and its text to open."""
    template = _environment().get_template("fragment.html.j2")
    return template.render(
        verdict=[text_of(line).strip() for line in verdict], tables=tables, text=Text(lines)
    )

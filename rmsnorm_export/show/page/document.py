"""A page: one file with its style and its script, which loads nothing, and sections made elsewhere.

A content security policy lets this script and this style run, by their hashes, and nothing else:
should text from a model ever get through as a tag, a browser does not run it and loads nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from rmsnorm_export.printable import one_line
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    Pairs,
    code,
    facts,
    join,
    names,
    note,
    tag,
)
from rmsnorm_export.show.text import Verdict, file_text
from rmsnorm_export.system.provenance import Provenance

_FIRST = 'document.documentElement.classList.add("js")'
"""Before anything is laid out: what a script will open or show later is not laid out now."""

PROGRAM = "rmsnorm-export"

_FILES = 4
"""Files of which the summary says everything at once."""

_SIGNS = {"good": ("\u2713", "good"), "warn": ("!", "attention"), "bad": ("\u2717", "failed")}
"""What stands before a verdict, and what is read out in its place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading and an entry in the navigation.

    Attributes:
        id: of the element; letters and hyphens, unique on the page.
        title: the heading.
        body: made with ``markup.tag``, which escapes what comes from a model.
        count: a number behind the title in the navigation; None: none.
    """

    id: str
    title: str
    body: Markup
    count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a page says of its making, next to the result itself.

    Attributes:
        date: when the result was made, e.g. ``2026-01-31 12:00 UTC``.
        versions: name and version of what made it.
        facts: more lines for the summary: name and text, e.g. ``("output", "fused.onnx, 3 MiB")``.
        problem: what / found / fix of the error that the run ended with.
        command: the command line.
        inputs, outputs: files that were read and written, one text each.
    """

    date: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    problem: tuple[str, str, str] | None = None
    command: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, made: Provenance, **rest: Any) -> About:
        """What a page says that a document says of its making, and the ``rest``."""
        tool, _, version = made.tool.partition(" ")
        system = made.platform.partition(" ")
        return cls(
            date=made.date,
            versions=(
                (tool, version),
                *made.versions.items(),
                ("Python", made.python),
                (system[0], system[2]),
            ),
            command=made.command,
            inputs=tuple(map(file_text, made.inputs)),
            outputs=tuple(map(file_text, made.outputs)),
            **rest,
        )

    def pairs(self) -> list[tuple[str, Content]]:
        """Facts, files, command, versions and date, for the summary."""
        versions = [tag("span", f"{name} {v}", class_="whole") for name, v in self.versions]
        return [
            *((name, one_line(text)) for name, text in self.facts),
            ("Files read", _files(self.inputs)),
            ("Files written", _files(self.outputs)),
            ("Command", code(self.command, 2000) if self.command else None),
            ("Versions", join(versions, ", ") if versions else None),
            ("Date", self.date or None),
        ]


def _files(texts: Sequence[str]) -> Markup | None:
    """Files with their hashes; many of them are closed at first."""
    listed = names(texts, 600)
    if len(texts) <= _FILES:
        return listed
    return tag("details", tag("summary", f"{len(texts)} files and their SHA-256"), listed)


def summary(
    verdicts: Iterable[Verdict], about: About, *body: Content, count: int | None = None
) -> Section:
    """The head of a page: what it comes to, the error that the run ended with, and ``body``."""
    problem = None
    if about.problem is not None:
        problem = problem_box(*about.problem)
    parts = [*map(_verdict, verdicts), problem, *body]
    return Section("summary", "Summary", join(parts), count)


def _verdict(verdict: Verdict) -> Markup:
    text, kind = verdict
    sign = None
    if kind:
        mark, spoken = _SIGNS[kind]
        hidden = tag("span", spoken, class_="hidden")
        sign = tag("span", tag("span", mark, aria_hidden="true"), hidden)
    return tag("p", sign, tag("strong", one_line(text)), class_=f"verdict {kind}".strip())


def problem_box(what: str, found: str, fix: str, before: Pairs = ()) -> Markup:
    """An error in its three lines, below what else is to be said of it."""
    lines = (("Error", what), ("Found", found), ("Fix", fix))
    pairs = [*before, *((name, one_line(text) or None) for name, text in lines)]
    return tag("div", facts(pairs), class_="problem", role="note")


def strip(numbers: Iterable[tuple[str, str]]) -> Markup:
    """Numbers side by side, large, each with what it counts."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for value, name in numbers),
        class_="strip",
    )


def page_notes(notes: Iterable[str], label: str = "Note") -> list[Markup]:
    """A paragraph each."""
    return [note(f"{label}: {one_line(text)}") for text in notes]


@functools.cache
def _asset(name: str) -> str:
    """A file beside this module, without the comment that explains it to its editors."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    _, _, rest = text.partition("*/\n")
    return rest.strip() + "\n"


def _allowed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def document(title: str, subject: str, sections: Sequence[Section]) -> str:
    """The whole document.

    Args:
        title: what the report is, e.g. ``RMSNorm report``.
        subject: what it is about: the path of a model.
        sections: in order; their ids must differ.

    Raises:
        ValueError: two sections have one id.
    """
    ids = [section.id for section in sections]
    if len(set(ids)) != len(ids):
        raise ValueError(f"two sections have one id: {', '.join(ids)}")
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_allowed(style)};"
        f" script-src {_allowed(_FIRST)} {_allowed(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=PROGRAM),
        tag("title", f"{title}: {subject}"[:300]),
        tag("script", Markup(_FIRST)),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#summary", class_="skip"),
        _header(title, subject, sections),
        tag("main", *map(_section, sections)),
        tag("footer", tag("p", f"Made by {PROGRAM}. This file is complete: it loads nothing.")),
        tag("script", Markup(script)),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _header(title: str, subject: str, sections: Sequence[Section]) -> Markup:
    links = [
        tag(
            "li",
            tag(
                "a",
                section.title,
                None if section.count is None else tag("small", f"{section.count:,}"),
                href=f"#{section.id}",
            ),
        )
        for section in sections
    ]
    theme = tag("button", "Theme: auto", type="button", id="theme", hidden=True)
    return tag(
        "header",
        tag("h1", title, " ", code(subject, 160)),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        theme,
    )


def _section(section: Section) -> Markup:
    heading = tag("h2", section.title, id=f"{section.id}-title")
    return tag(
        "section",
        heading,
        section.body,
        id=section.id,
        aria_labelledby=f"{section.id}-title",
    )

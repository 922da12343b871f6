"""The document around the sections: one file with its style and its script, which loads nothing.

A content security policy lets this script and this style run, by their hashes, and nothing else:
should text from a model ever get through as a tag, a browser does not run it and loads nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources

from rmsnorm_export.show.page.markup import Markup, code, join, tag
from rmsnorm_export.show.page.section import Section

_FIRST = 'document.documentElement.classList.add("js")'
"""Before anything is laid out: what a script will open or show later is not laid out now."""

PROGRAM = "rmsnorm-export"


@functools.cache
def _asset(name: str) -> str:
    """A file beside this module, without the comment that explains it to its editors."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    _, _, rest = text.partition("*/\n")
    return rest.strip() + "\n"


def _allowed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def page(title: str, subject: str, sections: Sequence[Section]) -> str:
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
    return f"<!DOCTYPE html>\n{_html(head, body)}\n"


def _html(head: Markup, body: Markup) -> Markup:
    return join([Markup('<html lang="en">\n'), head, Markup("\n"), body, Markup("\n</html>")])


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

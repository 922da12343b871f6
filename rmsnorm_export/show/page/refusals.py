"""What was left as it was, and why: norms apart from what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import one_line
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.page.markup import (
    Markup,
    code,
    facts,
    join,
    many,
    scroller,
    shortened,
    tag,
)
from rmsnorm_export.show.page.section import Section
from rmsnorm_export.show.page.words import REASONS

_OPEN = 12
"""Groups with more nodes than this are closed at first."""

_ROWS = 500
"""Nodes listed per group."""

_GROUPS = 100


def refusal_sections(report: Report, *, planned: bool) -> list[Section]:
    """A section each for refused norms and for look-alikes, where there are any."""
    left = "cannot become one node" if planned else "did not become one node"
    sections = []
    if refused := report.unfused:
        intro = f"{many(len(refused), 'RMSNorm')} (as far as the file tells) that {left}."
        sections.append(_section("refused", "Refused norms", intro, refused))
    if alike := report.look_alikes:
        intro = (
            f"{many(len(alike), 'place')} where the nodes look like an RMSNorm and compute"
            " something else. Leaving them alone is right; nothing is to be done."
        )
        sections.append(_section("look-alikes", "Look-alikes", intro, alike))
    return sections


def _section(id_: str, title: str, intro: str, refused: Sequence[Refusal]) -> Section:
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refused:
        key = (refusal.reason, refusal.message, refusal.hint)
        groups.setdefault(key, []).append(refusal)
    ordered = sorted(groups.values(), key=len, reverse=True)
    parts = [tag("p", intro), *map(_group, ordered[:_GROUPS])]
    if len(ordered) > _GROUPS:
        parts.append(tag("p", f"{many(len(ordered) - _GROUPS, 'more reason')}.", class_="note"))
    return Section(id_, title, join(parts), len(refused))


def _group(members: Sequence[Refusal]) -> Markup:
    first = members[0]
    alike = first.kind == "look-alike"
    scoped = any(refusal.scope != "main" for refusal in members)
    rows = [
        tag(
            "tr",
            tag("th", code(refusal.node, 200), scope="row"),
            tag("td", code(refusal.op, 80)),
            tag("td", code(refusal.scope, 200)) if scoped else None,
            tag("td", one_line(refusal.found, 600)),
        )
        for refusal in members[:_ROWS]
    ]
    names = ("Node", "Operator", *(("In",) if scoped else ()), "Found")
    heads = (tag("th", name, scope="col") for name in names)
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    more = len(members) - _ROWS
    return tag(
        "article",
        tag(
            "h3",
            code(first.reason, 80),
            tag("small", many(len(members), "node")),
        ),
        tag("p", _sentence(first.message)),
        facts(
            [
                ("Means", REASONS.get(first.reason)),
                ("Better" if alike else "To do", one_line(first.hint) if first.hint else None),
            ]
        ),
        tag(
            "details",
            tag("summary", f"{many(len(members), 'node')} and what was found there"),
            scroller(f"Nodes refused: {shortened(first.reason, 80)}", table),
            tag("p", f"and {more:,} more", class_="note") if more > 0 else None,
            open=len(members) <= _OPEN,
        ),
        class_="refusal",
    )


def _sentence(text: str) -> str:
    line = one_line(text).rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."

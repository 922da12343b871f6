"""What was left as it was, and why: norms apart from what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import collapse, family, one_line, plural, printable
from rmsnorm_export.recognize.refusal import Refusal, RefusalKind
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.page.document import Section
from rmsnorm_export.show.page.markup import Markup, code, facts, join, more_of, note, shortened, tag
from rmsnorm_export.show.page.plain_table import plain_table
from rmsnorm_export.show.page.reasons import REASONS
from rmsnorm_export.show.proofs import scoped
from rmsnorm_export.show.text import FAMILIES, Line, grouped, name_lines

APART: dict[RefusalKind, tuple[str, str]] = {
    "residual": ("residuals", "in front of a norm"),
    "quantizer": ("quantizers", "behind a norm"),
    "rotary": ("rotary embeddings", "behind a norm"),
}
"""What stays apart from the node of a norm, and where it stands."""

_OPEN = 12
"""Groups with more nodes than this are closed at first."""

_NODES = 500
"""Nodes listed per group of a page."""

_GROUPS = 100
"""Groups on a page."""


def reasons_of(refused: Sequence[Refusal]) -> list[list[Refusal]]:
    """Refusals with the same reason as one group, the largest first."""
    return grouped(refused, lambda refusal: (refusal.reason, refusal.message, refusal.hint))


def refusal_lines(refused: Sequence[Refusal], *, verbose: int) -> list[Line]:
    """A group for each reason.

    What was found and what to do are left out for look-alikes, where nothing is to be done, unless
    every one is listed.
    """
    groups = reasons_of(refused)
    width = len(str(len(groups[0])))
    lines: list[Line] = []
    for members in groups:
        first = members[0]
        alike = first.kind == "look-alike"
        what = f"  {len(members):{width}} x  {printable(first.reason)}: {one_line(first.message)}"
        lines.append((what, "yellow" if first.kind == "norm" else ""))
        if verbose > 0:
            lines += map(_one_refusal, members)
        elif alike:
            lines += name_lines(scoped(refusal.node, refusal.scope) for refusal in members)
        else:
            lines += _findings(members)
        if first.hint and (verbose > 0 or not alike):
            lines.append(f"      {'hint' if alike else 'fix':5}  {one_line(first.hint)}")
    return lines


def _one_refusal(refusal: Refusal) -> str:
    where = "" if refusal.scope == "main" else f" in {printable(refusal.scope)}"
    node = f"{printable(refusal.node)} [{printable(refusal.op)}]{where}"
    return f"      {node}: {one_line(refusal.found)}"


def _findings(members: Sequence[Refusal]) -> list[Line]:
    """What was found where; findings that differ in numbers only are one."""
    kinds: dict[tuple[str, ...], list[Refusal]] = {}
    for refusal in members:
        kinds.setdefault(family(one_line(refusal.found)), []).append(refusal)
    lines: list[Line] = []
    for kind in list(kinds.values())[:FAMILIES]:
        lines += name_lines(scoped(refusal.node, refusal.scope) for refusal in kind)
        lines += [f"      found  {text}" for text in collapse(one_line(r.found) for r in kind)]
    if len(kinds) > FAMILIES:
        rest = len(kinds) - FAMILIES
        lines.append(f"      and {rest} more kinds of finding (-v lists all)")
    return lines


def refusal_sections(report: Report) -> list[Section]:
    """A section each for refused norms and for look-alikes, where there are any."""
    left = "cannot become one node" if report.planned else "did not become one node"
    sections = []
    if refused := report.unfused:
        intro = f"{plural(len(refused), 'RMSNorm')} (as far as the file tells) that {left}."
        sections.append(_refusal_section("refused", "Refused norms", intro, refused))
    for kind, (what, where) in APART.items():
        if apart := report.apart(kind):
            intro = f"{plural(len(apart), 'node')} {where} that are no part of its node."
            sections.append(_refusal_section(f"{kind}s", what.capitalize(), intro, apart))
    if alike := report.look_alikes:
        intro = (
            f"{plural(len(alike), 'place')} where the nodes look like an RMSNorm and compute"
            " something else. Leaving them alone is right; nothing is to be done."
        )
        sections.append(_refusal_section("look-alikes", "Look-alikes", intro, alike))
    return sections


def _refusal_section(id_: str, title: str, intro: str, refused: Sequence[Refusal]) -> Section:
    groups = reasons_of(refused)
    parts = [tag("p", intro), *map(_reason_article, groups[:_GROUPS])]
    if len(groups) > _GROUPS:
        parts.append(note(f"{plural(len(groups) - _GROUPS, 'more reason')}."))
    return Section(id_, title, join(parts), len(refused))


def _reason_article(members: Sequence[Refusal]) -> Markup:
    first, count = members[0], plural(len(members), "node")
    scopes = any(refusal.scope != "main" for refusal in members)
    rows = [
        (
            code(refusal.node, 200),
            code(refusal.op, 80),
            *((code(refusal.scope, 200),) if scopes else ()),
            one_line(refusal.found, 600),
        )
        for refusal in members[:_NODES]
    ]
    heads = ("Node", "Operator", *(("In",) if scopes else ()), "Found")
    title = f"Nodes refused: {shortened(first.reason, 80)}"
    sentence = one_line(first.message).rstrip(".")
    advice = "Better" if first.kind == "look-alike" else "To do"
    return tag(
        "article",
        tag("h3", code(first.reason, 80), tag("small", count)),
        tag("p", f"{sentence[:1].upper()}{sentence[1:]}."),
        facts([("Means", REASONS.get(first.reason)), (advice, one_line(first.hint) or None)]),
        tag(
            "details",
            tag("summary", f"{count} and what was found there"),
            plain_table(title, heads, rows),
            more_of(len(members) - _NODES, "node"),
            open=len(members) <= _OPEN,
        ),
        class_="refusal",
    )

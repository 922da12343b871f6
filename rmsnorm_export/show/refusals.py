"""What was left as it was, and why: norms apart from what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import collapse, family, one_line, plural, printable
from rmsnorm_export.recognize.refusal import Refusal, RefusalKind
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.page import MOST_ROWS, Article, Facts, Section, Table
from rmsnorm_export.show.proofs import scoped
from rmsnorm_export.show.text import FAMILIES, Line, grouped, name_lines

APART: dict[RefusalKind, tuple[str, str]] = {
    "residual": ("residuals", "in front of a norm"),
    "quantizer": ("quantizers", "behind a norm"),
    "rotary": ("rotary embeddings", "behind a norm"),
}
"""What stays apart from the node of a norm, and where it stands."""

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
    """Return a section each for refused norms and for look-alikes, where there are any."""
    left = "cannot become one node" if report.planned else "did not become one node"
    sections = []
    if refused := report.unfused:
        intro = f"{plural(len(refused), 'RMSNorm')} (as far as the file tells) that {left}."
        sections.append(_refusal_section("Refused norms", intro, refused))
    for kind, (what, where) in APART.items():
        if apart := report.apart(kind):
            intro = f"{plural(len(apart), 'node')} {where} that are no part of its node."
            sections.append(_refusal_section(what.capitalize(), intro, apart))
    if alike := report.look_alikes:
        intro = (
            f"{plural(len(alike), 'place')} where the nodes look like an RMSNorm and compute"
            " something else. Leaving them alone is right; nothing is to be done."
        )
        sections.append(_refusal_section("Look-alikes", intro, alike))
    return sections


def _refusal_section(title: str, intro: str, refused: Sequence[Refusal]) -> Section:
    articles = [_reason_article(members) for members in reasons_of(refused)[:_GROUPS]]
    return Section(title, articles, len(refused), intro)


def _reason_article(members: Sequence[Refusal]) -> Article:
    first = members[0]
    count = plural(len(members), "node")
    sentence = one_line(first.message).rstrip(".")
    heads = ("Node", "Operator", "In", "Found")
    rows = [(r.node, r.op, r.scope, one_line(r.found, 600)) for r in members[:MOST_ROWS]]
    advice = "Better" if first.kind == "look-alike" else "To do"
    return Article(
        f"{first.reason} ({count})",
        [
            Facts([(advice, one_line(first.hint))]),
            Table(f"{count} and what was found there", heads, rows, names=heads[:3], folded=True),
        ],
        note=f"{sentence[:1].upper()}{sentence[1:]}.",
    )

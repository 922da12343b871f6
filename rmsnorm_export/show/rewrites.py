"""The different rewrites of a model: what sites that differ in names alone have in common.

A model with 250 norms has a handful. As text each is a group of lines; on a page each is explained
and drawn once, and its sites refer to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.op.numerics import NUMERICS_MEANING
from rmsnorm_export.op.spec import ATTRIBUTE_WORDS
from rmsnorm_export.printable import collapse, one_line, plural, printable
from rmsnorm_export.rewrite.drawing import Drawing
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.page.document import Section
from rmsnorm_export.show.page.graph import drawing
from rmsnorm_export.show.page.markup import (
    Markup,
    badge,
    code,
    facts,
    join,
    names,
    note,
    paragraphs,
    shortened,
    tag,
)
from rmsnorm_export.show.proofs import proof_block, proof_text, proved, scoped
from rmsnorm_export.show.text import Line, grouped, name_lines, table

MOST = 60
"""Rewrites that are explained; sites of further ones have their row in the table only."""

_FAMILIES = 6
"""Lines of collapsed names per rewrite."""

_WORDS = 24
"""Operator types shown of a spelling."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """Sites that are equal but for their names.

    Attributes:
        label: ``R1``, ``R2``, ... in the order of size; its element has this id.
        sites: in the report's order.
        kept: they were one node already.
        drawing: the graphs, where they were recorded.
    """

    label: str
    sites: tuple[Site, ...]
    kept: bool
    drawing: Drawing | None


def _sameness(site: Site) -> tuple[object, ...]:
    """What the sites of one group have in common; attributes in the order of their names."""
    attributes = tuple(sorted((name, str(value)) for name, value in site.attributes.items()))
    plain = (site.op, site.spelling, site.numerics, site.dtype, site.n, str(site.epsilon))
    return (*plain, attributes, site.notes)


def epsilon_text(site: Site) -> str:
    """Seven digits, as many as a float32 has."""
    return f"{site.epsilon:.7g}"


def _columns(site: Site) -> list[str]:
    return [
        printable(site.op),
        printable(site.dtype),
        "n=?" if site.n is None else f"n={site.n}",
        f"epsilon={epsilon_text(site)}",
        site.numerics,
        " ".join(f"{printable(k)}={printable(str(v))}" for k, v in site.attributes.items()),
    ]


def group_lines(sites: Sequence[Site]) -> list[Line]:
    """Equal sites once, with their number: a line of facts, the spelling, the names."""
    groups = grouped(sites, _sameness)
    rows = [[f"{len(group)} x", *_columns(group[0])] for group in groups]
    lines: list[Line] = []
    for row, group in zip(table(rows, right=(0,)), groups, strict=True):
        lines.append(row)
        if group[0].spelling:
            lines.append(f"      was    {printable(group[0].spelling)}")
        lines += name_lines(scoped(site.name, site.scope) for site in group)
        lines += name_lines((str(site.module) for site in group if _module_says_more(site)), "from")
        lines += [f"      note   {one_line(note)}" for note in group[0].notes]
    return lines


def _module_says_more(site: Site) -> bool:
    """Whether the PyTorch module is known and the node is not named after it."""
    return site.module is not None and site.module not in site.name


def site_lines(sites: Sequence[Site]) -> list[Line]:
    """Every site: its name, a line of facts, what it replaces and, where asked for, its proof."""
    lines: list[Line] = []
    rows = table([_columns(site) for site in sites], indent="      ")
    for row, site in zip(rows, sites, strict=True):
        lines += [f"  {printable(scoped(site.name, site.scope))}", row]
        if _module_says_more(site):
            lines.append(f"      from   {printable(str(site.module))}")
        if site.nodes:
            lines.append(f"      was    {printable(site.spelling)}")
            lines.append(f"             {', '.join(map(printable, site.nodes))}")
        if site.proof is not None:
            lines.append(f"      proof  {proof_text(site.proof)}")
        lines += [f"      note   {one_line(note)}" for note in site.notes]
    return lines


def rewrites_of(report: Report, of: str = "") -> list[Rewrite]:
    """All rewrites of a report, the most frequent first, those of kept nodes last.

    Their labels begin with ``of``, which tells those of several reports on one page apart.
    """
    groups = [
        (kept, group)
        for kept, sites in ((False, report.fused), (True, report.kept))
        for group in grouped(sites, lambda site: (*_sameness(site), site.drawing))
    ]
    rewrites = []
    for index, (kept, members) in enumerate(groups, 1):
        drawn = members[0].drawing
        known = drawn is not None and 0 <= drawn < len(report.drawings)
        graphs = report.drawings[drawn] if known and drawn is not None else None
        rewrites.append(Rewrite(f"{of}R{index}", tuple(members), kept, graphs))
    return rewrites


def rewrites_section(report: Report, rewrites: Sequence[Rewrite]) -> list[Section]:
    """The explained rewrites, where there are any."""
    if not rewrites:
        return []
    drawn: dict[int, str] = {}
    parts = [_rewrite_article(rewrite, drawn) for rewrite in rewrites[:MOST]]
    if len(rewrites) > MOST:
        rest = plural(len(rewrites) - MOST, "rewrite")
        parts.append(note(f"{rest} more: their sites are in the table below."))
    intro = tag(
        "p",
        f"{plural(len(report.fused) + len(report.kept), 'site')} of "
        f"{plural(len(rewrites), 'kind')}. Sites of one kind differ in names, weights and leading"
        " sizes only, so each kind is drawn once.",
    )
    return [Section("rewrites", "Rewrites", join([intro, *parts]), len(rewrites))]


def _rewrite_article(rewrite: Rewrite, drawn: dict[int, str]) -> Markup:
    site, count = rewrite.sites[0], len(rewrite.sites)
    title = tag(
        "h3",
        tag("span", rewrite.label, class_="label"),
        " ",
        code(site.op, 80),
        tag("small", plural(count, "site") + (", kept" if rewrite.kept else "")),
    )
    length = "n unknown" if site.n is None else f"{site.n:,} elements"
    families = collapse(scoped(s.name, s.scope) for s in rewrite.sites)
    meaning = NUMERICS_MEANING.get(site.numerics, "")
    pairs = facts(
        [
            ("Sites", names(families, 200, most=_FAMILIES, more=", see the table of sites")),
            ("Spelling", spelling(site)),
            ("Numerics", tag("span", badge(site.numerics), " ", meaning)),
            ("Row", f"{shortened(site.dtype, 40)}, {length}"),
            ("Epsilon", epsilon_text(site)),
            ("Attributes", attributes(site)),
            ("Notes", paragraphs(site.notes)),
        ]
    )
    proofs = [proof for _, proof in proved(rewrite.sites)]
    block = proof_block(proofs, count, rewrite.label) if proofs else None
    about = tag("div", pairs, block, class_="about")
    return tag(
        "article",
        title,
        tag("div", about, _graphs(rewrite, drawn), class_="rewrite"),
        id=rewrite.label,
        aria_label=f"Rewrite {rewrite.label}",
    )


def _graphs(rewrite: Rewrite, drawn: dict[int, str]) -> Markup | None:
    """The graphs, or where on the page they are already."""
    if rewrite.drawing is None:
        return None
    earlier = drawn.setdefault(id(rewrite.drawing), rewrite.label)
    if earlier == rewrite.label:
        return drawing(rewrite.drawing, rewrite.label)
    link = tag("a", earlier, href=f"#{earlier}")
    return tag("p", "The graphs are those of ", link, ".", class_="note", data_as=earlier)


def spelling(site: Site) -> Markup | None:
    """Operator types of the source nodes, in order."""
    words = site.spelling.split()
    if not words:
        return None
    shown = [shortened(word, 60) for word in words[:_WORDS]]
    if len(words) > _WORDS:
        shown.append(f"\u2026 ({len(words)} nodes)")
    return tag("span", " \u2192 ".join(shown), class_="spelling")


def attributes(site: Site) -> Markup | None:
    """Attributes that differ from the ordinary norm, with what they mean."""
    if not site.attributes:
        return None
    items = (
        tag("li", code(f"{name}={value}", 80), f" {meaning}" if meaning else None)
        for name, value in site.attributes.items()
        for meaning in [ATTRIBUTE_WORDS.get(name)]
    )
    return tag("ul", *items, class_="names")

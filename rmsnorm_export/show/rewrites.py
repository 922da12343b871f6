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
from rmsnorm_export.show.draw import pictures
from rmsnorm_export.show.page import Article, Facts, Part, Section, Table, Text
from rmsnorm_export.show.proofs import PROOF_HEADS, proof_cells, proof_text, scoped
from rmsnorm_export.show.text import Line, grouped, name_lines
from rmsnorm_export.show.text import table as text_table

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
    for row, group in zip(text_table(rows, right=(0,)), groups, strict=True):
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
    rows = text_table([_columns(site) for site in sites], indent="      ")
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


def rewrites_of(report: Report) -> list[Rewrite]:
    """Return all rewrites of a report, the most frequent first, those of kept nodes last."""
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
        rewrites.append(Rewrite(f"R{index}", tuple(members), kept, graphs))
    return rewrites


def rewrite_sections(report: Report) -> list[Section]:
    """Return the explained rewrites, each drawn once, and the table of all sites."""
    rewrites = rewrites_of(report)
    if not rewrites:
        return []
    drawn: dict[int, str] = {}
    intro = (
        f"{plural(len(report.fused) + len(report.kept), 'site')} of "
        f"{plural(len(rewrites), 'kind')}. Sites of one kind differ in names, weights and leading"
        " sizes only, so each kind is drawn once."
    )
    articles: list[Part] = [_article(rewrite, drawn) for rewrite in rewrites[:MOST]]
    if len(rewrites) > MOST:
        rest = plural(len(rewrites) - MOST, "rewrite")
        articles.append(Text([f"{rest} more: their sites are in the table below."]))
    return [
        Section("Rewrites", articles, len(rewrites), intro),
        _sites_section(report, rewrites),
    ]


def _article(rewrite: Rewrite, drawn: dict[int, str]) -> Article:
    site, count = rewrite.sites[0], plural(len(rewrite.sites), "site")
    attributes = [
        f"{name}={value} {ATTRIBUTE_WORDS.get(name, '')}".rstrip()
        for name, value in site.attributes.items()
    ]
    parts: list[Part] = [
        Facts(
            [
                ("Sites", collapse(scoped(s.name, s.scope) for s in rewrite.sites)[:_FAMILIES]),
                ("Spelling", " \u2192 ".join(site.spelling.split()[:_WORDS])),
                ("Numerics", f"{site.numerics}: {NUMERICS_MEANING.get(site.numerics, '')}"),
                ("Row", f"{site.dtype}, {site.n or 'unknown number of'} elements"),
                ("Epsilon", epsilon_text(site)),
                ("Attributes", attributes),
                ("Notes", [one_line(note) for note in site.notes]),
            ]
        )
    ]
    if rewrite.drawing is not None:
        earlier = drawn.setdefault(id(rewrite.drawing), rewrite.label)
        if earlier == rewrite.label:
            parts.append(pictures(rewrite.drawing))
        else:
            parts.append(Text([f"The graphs are those of {earlier}."]))
    return Article(f"{rewrite.label} {site.op} ({count}{', kept' if rewrite.kept else ''})", parts)


def _sites_section(report: Report, rewrites: Sequence[Rewrite]) -> Section:
    """Return a row for each site; after MOST_ROWS a page would no longer open in seconds."""
    proved_ = any(site.proof is not None for site in report.fused)
    heads = ("Site", "Kind", "Operator", "Numerics", "Type", "n", "Epsilon", "Module")
    heads = (*heads, *(PROOF_HEADS if proved_ else ()))
    rows = [
        [
            scoped(site.name, site.scope),
            rewrite.label,
            site.op,
            "kept" if rewrite.kept else site.numerics,
            site.dtype,
            "?" if site.n is None else str(site.n),
            epsilon_text(site),
            site.module or "",
            *(proof_cells(site.proof) if proved_ else ()),
        ]
        for rewrite in rewrites
        for site in rewrite.sites
    ]
    numbers = ("n", "Epsilon", *PROOF_HEADS[1:])
    table = Table("All sites", heads, rows, numbers=numbers, names=("Site", "Operator", "Module"))
    return Section("Sites", [table], len(rows))

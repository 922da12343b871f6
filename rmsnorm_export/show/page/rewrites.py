"""The different rewrites of a model: what sites that differ in names alone have in common.

A model with 250 norms has a handful; each is explained and drawn once, and its sites refer to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from rmsnorm_export.op.spec import ATTRIBUTE_WORDS
from rmsnorm_export.printable import collapse, number, one_line
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.rewrite.drawing import Drawing
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.page import histogram
from rmsnorm_export.show.page.graph import drawing
from rmsnorm_export.show.page.markup import Markup, code, facts, join, many, shortened, tag
from rmsnorm_export.show.page.section import Section
from rmsnorm_export.show.page.words import NUMERICS

MOST = 60
"""Rewrites that are explained; sites of further ones have their row in the table only."""

_NAMES = 6
"""Lines of collapsed names per rewrite."""


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


def rewrites(report: Report) -> list[Rewrite]:
    """All rewrites of a report, the most frequent first."""
    groups: dict[tuple[bool, tuple[object, ...]], list[Site]] = {}
    for kept, sites in ((False, report.fused), (True, report.kept)):
        for site in sites:
            groups.setdefault((kept, _key(site)), []).append(site)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    found = []
    for index, ((kept, _), members) in enumerate(ordered, 1):
        drawn = members[0].drawing
        known = drawn is not None and 0 <= drawn < len(report.drawings)
        graphs = report.drawings[drawn] if known and drawn is not None else None
        found.append(Rewrite(f"R{index}", tuple(members), kept, graphs))
    return found


def _key(site: Site) -> tuple[object, ...]:
    attributes = tuple(sorted((name, str(value)) for name, value in site.attributes.items()))
    plain = (site.op, site.spelling, site.numerics, site.dtype, site.n, str(site.epsilon))
    return (*plain, attributes, site.notes, site.drawing)


def rewrites_section(report: Report, found: Sequence[Rewrite]) -> Section | None:
    """The explained rewrites; None when there is none."""
    if not found:
        return None
    drawn: dict[int, str] = {}
    parts = [_rewrite(rewrite, drawn) for rewrite in found[:MOST]]
    if len(found) > MOST:
        rest = many(len(found) - MOST, "rewrite")
        parts.append(tag("p", f"{rest} more: their sites are in the table below.", class_="note"))
    intro = tag(
        "p",
        f"{many(len(report.fused) + len(report.kept), 'site')} of "
        f"{many(len(found), 'kind')}. Sites of one kind differ in names, weights and leading"
        " sizes only, so each kind is drawn once.",
    )
    return Section("rewrites", "Rewrites", join([intro, *parts]), len(found))


def _rewrite(rewrite: Rewrite, drawn: dict[int, str]) -> Markup:
    site = rewrite.sites[0]
    title = tag(
        "h3",
        tag("span", rewrite.label, class_="label"),
        " ",
        code(site.op, 80),
        tag("small", many(len(rewrite.sites), "site") + (", kept" if rewrite.kept else "")),
    )
    body = [_facts(rewrite)]
    proofs = [s.proof for s in rewrite.sites if s.proof is not None]
    if proofs:
        body.append(proof_block(proofs, len(rewrite.sites), rewrite.label))
    graphs = _graphs(rewrite, drawn)
    columns = tag("div", *body, class_="about"), graphs
    return tag(
        "article",
        title,
        tag("div", *columns, class_="rewrite"),
        id=rewrite.label,
        aria_label=f"Rewrite {rewrite.label}",
    )


def _graphs(rewrite: Rewrite, drawn: dict[int, str]) -> Markup | None:
    if rewrite.drawing is None:
        return None
    earlier = drawn.get(id(rewrite.drawing))
    if earlier is None:
        drawn[id(rewrite.drawing)] = rewrite.label
        return drawing(rewrite.drawing, rewrite.label)
    link = tag("a", earlier, href=f"#{earlier}")
    return tag("p", "The graphs are those of ", link, ".", class_="note", data_as=earlier)


def _facts(rewrite: Rewrite) -> Markup:
    site = rewrite.sites[0]
    length = "n unknown" if site.n is None else f"{site.n:,} elements"
    names = collapse(_scoped(s) for s in rewrite.sites)
    shown = [tag("li", code(name, 200)) for name in names[:_NAMES]]
    if len(names) > _NAMES:
        shown.append(tag("li", f"and {len(names) - _NAMES:,} more, see the table of sites"))
    return facts(
        [
            ("Sites", tag("ul", *shown, class_="names")),
            ("Spelling", spelling(site.spelling)),
            ("Numerics", tag("span", badge(site.numerics), " ", NUMERICS.get(site.numerics, ""))),
            ("Row", f"{shortened(site.dtype, 40)}, {length}"),
            ("Epsilon", f"{site.epsilon:.7g}"),
            ("Attributes", attributes(site)),
            (
                "Notes",
                join(tag("p", one_line(note)) for note in site.notes) if site.notes else None,
            ),
        ]
    )


def spelling(text: str, limit: int = 24) -> Markup | None:
    """Operator types of the source nodes, in order."""
    words = text.split()
    if not words:
        return None
    shown = [shortened(word, 60) for word in words[:limit]]
    if len(words) > limit:
        shown.append(f"\u2026 ({len(words)} nodes)")
    return tag("span", " \u2192 ".join(shown), class_="spelling")


def attributes(site: Site) -> Markup | None:
    """Attributes that differ from the ordinary norm, with what they mean."""
    if not site.attributes:
        return None
    items = []
    for name, value in site.attributes.items():
        meaning = ATTRIBUTE_WORDS.get(name)
        text = code(f"{name}={value}", 80)
        items.append(tag("li", text, f" {meaning}" if meaning else None))
    return tag("ul", *items, class_="names")


def badge(word: str, kind: str | None = None) -> Markup:
    """A word in a frame; its colour only repeats what the word says."""
    known = kind or (word if word in NUMERICS else "plain")
    return tag("span", shortened(word, 40), class_=f"badge {known}")


def _scoped(site: Site) -> str:
    return site.name if site.scope == "main" else f"{site.name} in {site.scope}"


def proof_block(proofs: Sequence[Proof], sites: int, label: str, *, inputs: bool = True) -> Markup:
    """What proofs say together: bounds and what was seen, and the histogram of distances.

    Args:
        proofs: one or more.
        sites: of as many sites.
        label: what the reader knows them as.
        inputs: say too what computed them on which rows.
    """
    held = sum(proof.passed for proof in proofs)
    worst = max(proofs, key=lambda proof: _rank(proof.max_ulp))
    said = f"{held} of {sites} hold" if sites > 1 else "holds" if held else "FAILED"
    reason = next((proof.reason for proof in proofs if not proof.passed), "")
    before = largest(proof.error_before for proof in proofs)
    after = largest(proof.error_after for proof in proofs)
    mismatch = largest(proof.mismatch for proof in proofs)
    table = tag(
        "table",
        tag("caption", "Proof: ", badge(said, "good" if held == sites else "bad")),
        tag("thead", _row("th", "", "seen", "allowed")),
        tag(
            "tbody",
            _row("td", "largest distance, ulp", number(worst.max_ulp), number(worst.bound_ulp)),
            _row("td", "elements that differ", f"{mismatch:.2%}", ""),
            _row("td", "largest difference", number(largest(p.max_abs for p in proofs)), ""),
            _row("td", "error against float64, ulp: old nodes", number(before), ""),
            _row("td", "error against float64, ulp: new nodes", number(after), ""),
        ),
        class_="small",
    )
    runtimes = dict.fromkeys(shortened(proof.runtime, 120) for proof in proofs)
    cases = dict.fromkeys(case for proof in proofs for case in proof.cases)
    by = f"Computed by {', '.join(list(runtimes)[:4])}" if any(runtimes) else ""
    on = f"rows: {', '.join(map(one_line, list(cases)[:20]))}" if cases else ""
    text = "; ".join(part for part in (by, on) if part)
    seen = histogram.add(p.ulp_histogram for p in proofs)
    bars = histogram.histogram(seen, f"{label}, new against old")
    return tag(
        "div",
        table,
        tag("p", one_line(reason), class_="bad-text") if reason else None,
        tag("figure", tag("figcaption", "Elements by distance in ulp, logarithmic"), bars)
        if bars
        else None,
        tag("p", f"{text}.", class_="note") if text and inputs else None,
        class_="proof",
    )


def _row(first: str, name: str, *cells: str) -> Markup:
    """A row of a small table: a heading, then numbers."""
    if first == "th":
        return tag("tr", tag("td"), *(tag("th", cell, scope="col") for cell in cells))
    return tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells))


def largest(values: Iterable[float]) -> float:
    """The worst of some measurements: what is not a number is worse than all."""
    return max(values, key=_rank)


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value

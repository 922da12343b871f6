"""The table of sites: a row each, to be filtered and sorted, and what else is known below it.

Without JavaScript every row is followed by a closed ``details`` element; with it the name becomes a
button that opens the row. A page stays of a size that opens: see ``DETAILED``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.printable import number, one_line
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    code,
    facts,
    join,
    many,
    scroller,
    shortened,
    tag,
)
from rmsnorm_export.show.page.rewrites import (
    MOST,
    Rewrite,
    attributes,
    badge,
    proof_block,
    spelling,
)
from rmsnorm_export.show.page.section import Section

DETAILED = 1000
"""Sites with a row to open; of further ones, the failed and noted ones alone have one."""

LISTED = 10_000
"""Rows of the table; beyond, a browser would no longer open the page in seconds."""

SHOWN = 500
"""Rows that a script shows at once; a button shows all. Without JavaScript all are there."""

_NODES = 40

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("site", "Site", "text"),
    ("kind", "Kind", "number"),
    ("op", "Operator", "text"),
    ("numerics", "Numerics", "order"),
    ("dtype", "Type", "text"),
    ("n", "n", "number"),
    ("epsilon", "Epsilon", "number"),
    ("proof", "Proof", "text"),
    ("ulp", "Ulp seen", "number"),
    ("bound", "Ulp allowed", "number"),
    ("before", "Error before", "number"),
    ("after", "Error after", "number"),
)
_PROOF = frozenset({"proof", "ulp", "bound", "before", "after"})


def sites_section(report: Report, found: Sequence[Rewrite]) -> Section | None:
    """The table of all sites; None when there is none."""
    label_of = {(r.kept, id(site)): r.label for r in found for site in r.sites}
    sites = (*report.fused, *report.kept)
    if not sites:
        return None
    proved = any(site.proof is not None for site in sites)
    columns = [c for c in _COLUMNS if proved or c[0] not in _PROOF]
    linked = {rewrite.label for rewrite in found[:MOST]}
    rows = []
    for index, site in enumerate(sites[:LISTED]):
        kept = index >= len(report.fused)
        rows.append(_site(site, index, label_of[kept, id(site)], columns, linked, kept))
    heads = (
        tag(
            "th",
            title,
            scope="col",
            class_="num" if sort == "number" else None,
            data_sort=sort,
            data_order=" ".join(NUMERICS_ORDER) if sort == "order" else None,
        )
        for _, title, sort in columns
    )
    table = tag(
        "table",
        tag("caption", "All sites", class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="sites",
        id="site-table",
        data_shown=SHOWN,
    )
    legend = (
        "Ulp seen: largest distance of the new nodes from the old. Error: largest distance from"
        " float64, in ulp, before and after."
    )
    parts = [
        _filters(sites, columns),
        scroller("Sites", table),
        tag("button", "Show all rows", type="button", id="show-all", hidden=True),
        tag("p", legend, class_="note") if proved else None,
        *_limits(sites),
    ]
    return Section("sites", "Sites", join(parts), len(sites))


def _limits(sites: Sequence[Site]) -> list[Markup]:
    """What the page leaves out of a very large model."""
    said = []
    if len(sites) > DETAILED:
        said.append(
            f"Of {many(len(sites), 'site')}, the first {DETAILED:,} open, and those whose proof"
            " failed. Rows of the others hold their numbers; --format json lists all."
        )
    if len(sites) > LISTED:
        said.append(f"The table ends after {LISTED:,} rows.")
    return [tag("p", text, class_="note") for text in said]


def _filters(sites: Sequence[Site], columns: Sequence[tuple[str, str, str]]) -> Markup:
    """Controls that do nothing without JavaScript, and are hidden without it."""
    position = {name: index for index, (name, *_) in enumerate(columns)}
    choices = (
        (
            "numerics",
            "Numerics",
            [c for c in NUMERICS_ORDER if any(s.numerics == c for s in sites)],
        ),
        ("op", "Operator", sorted({shortened(s.op, 80) for s in sites})[:100]),
        ("dtype", "Type", sorted({shortened(s.dtype, 40) for s in sites})[:100]),
    )
    fields = [
        tag(
            "label",
            "Search ",
            tag(
                "input",
                type="search",
                id="filter-text",
                autocomplete="off",
                spellcheck="false",
                placeholder="name, module, node",
            ),
        )
    ]
    for name, title, values in choices:
        options = [tag("option", "all", value="")]
        options += [tag("option", value, value=value) for value in values]
        select = tag("select", *options, id=f"filter-{name}", data_column=position[name])
        fields.append(tag("label", f"{title} ", select))
    fields.append(tag("button", "Reset", type="button", id="filter-reset"))
    fields.append(tag("output", many(len(sites), "site"), id="filter-count", for_="filter-text"))
    return tag("div", *fields, class_="filters", id="filters", role="search", hidden=True)


def _site(
    site: Site,
    index: int,
    label: str,
    columns: Sequence[tuple[str, str, str]],
    linked: set[str],
    kept: bool,
) -> Markup:
    cells = _cells(site, label, linked, kept)
    row = [tag("th", cells["site"], scope="row")]
    row += [
        tag("td", cells[name], class_="num" if sort == "number" else None)
        for name, _, sort in columns[1:]
    ]
    failed = site.proof is not None and not site.proof.passed
    rows = [tag("tr", *row, id=f"s{index + 1}", class_="rest" if index >= SHOWN else None)]
    if index < DETAILED or failed:
        summary = tag("summary", "Details of ", code(site.name, 120))
        opened = tag("details", summary, _details(site, label, linked))
        rows.append(tag("tr", tag("td", opened, colspan=len(columns)), class_="more"))
    return join(rows)


def _cells(site: Site, label: str, linked: set[str], kept: bool) -> dict[str, Content]:
    proof = site.proof
    cells: dict[str, Content] = {
        "site": code(site.name, 200),
        "kind": tag("a", label, href=f"#{label}") if label in linked else label,
        "op": code(site.op, 80),
        "numerics": badge(site.numerics) if not kept else badge("kept", "plain"),
        "dtype": shortened(site.dtype, 40),
        "n": "?" if site.n is None else str(site.n),
        "epsilon": f"{site.epsilon:.7g}",
    }
    cells.update(dict.fromkeys(_PROOF, "\u2013"))
    if proof is not None:
        cells |= {
            "proof": badge("holds", "good") if proof.passed else badge("FAILED", "bad"),
            "ulp": number(proof.max_ulp),
            "bound": number(proof.bound_ulp),
            "before": number(proof.error_before),
            "after": number(proof.error_after),
        }
    return cells


def _details(site: Site, label: str, linked: set[str]) -> Markup:
    """What the row and the rewrite do not say; a script adds the graphs at ``data-graphs``."""
    nodes = [tag("li", code(node, 200)) for node in site.nodes[:_NODES]]
    if len(site.nodes) > _NODES:
        nodes.append(tag("li", f"and {len(site.nodes) - _NODES:,} more"))
    link = tag("a", f"{label}: facts and graphs", href=f"#{label}") if label in linked else None
    left = facts(
        [
            ("Name", code(site.name)),
            ("Module", None if site.module is None else code(site.module)),
            ("In", None if site.scope == "main" else code(site.scope)),
            ("Rewrite", link),
            ("Spelling", spelling(site.spelling)),
            ("Attributes", attributes(site)),
            ("Notes", join(map(_note, site.notes)) if site.notes else None),
            ("Nodes", tag("ol", *nodes, class_="names") if nodes else None),
        ]
    )
    proof = None
    if site.proof is not None:
        proof = proof_block([site.proof], 1, "this site", inputs=label not in linked)
    graphs = tag("div", class_="graphs", data_graphs=label) if label in linked else None
    return tag("div", tag("div", left, proof, class_="about"), graphs, class_="rewrite")


def _note(note: str) -> Markup:
    return tag("p", one_line(note))

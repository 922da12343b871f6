"""The table of sites: a row each, to be filtered and sorted, and what else is known below it.

Without JavaScript every row is followed by a closed ``details`` element; with it the name becomes a
button that opens the row. A page stays of a size that opens: see ``DETAILED``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.printable import number, plural
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.page.document import Section
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    badge,
    code,
    facts,
    join,
    names,
    note,
    paragraphs,
    scroller,
    shortened,
    tag,
)
from rmsnorm_export.show.proofs import proof_block
from rmsnorm_export.show.rewrites import MOST, Rewrite, attributes, epsilon_text, spelling

DETAILED = 1000
"""Sites with a row to open; of further ones, those alone whose proof failed."""

LISTED = 10_000
"""Rows of the table; beyond, a browser would no longer open the page in seconds."""

SHOWN = 500
"""Rows that a script shows at once; a button shows all. Without JavaScript all are there."""

_NODES = 40

_COLUMNS = (
    ("Site", "text"),
    ("Kind", "number"),
    ("Operator", "text"),
    ("Numerics", "order"),
    ("Type", "text"),
    ("n", "number"),
    ("Epsilon", "number"),
)
"""Title of a column, and how it is sorted."""

_PROOF_COLUMNS = (
    ("Proof", "text"),
    ("Ulp seen", "number"),
    ("Ulp allowed", "number"),
    ("Error before", "number"),
    ("Error after", "number"),
)

_LEGEND = (
    "Ulp seen: largest distance of the new nodes from the old. Error: largest distance from"
    " float64, in ulp, before and after."
)


def sites_section(report: Report, rewrites: Sequence[Rewrite], of: str) -> list[Section]:
    """The table of all sites, where there are any; ``of`` as for ``report_sections``."""
    sites = (*report.fused, *report.kept)
    if not sites:
        return []
    rewrite_of = {
        (rewrite.kept, id(site)): rewrite for rewrite in rewrites for site in rewrite.sites
    }
    explained = {rewrite.label for rewrite in rewrites[:MOST]}
    proved = any(site.proof is not None for site in sites)
    columns = (*_COLUMNS, *(_PROOF_COLUMNS if proved else ()))
    rows = []
    for index, site in enumerate(sites[:LISTED]):
        rewrite = rewrite_of[index >= len(report.fused), id(site)]
        row_id = f"{of}s{index + 1}"
        known = rewrite.label in explained
        rows.append(_site_rows(site, index, rewrite, known, columns, row_id))
    heads = (
        tag(
            "th",
            title,
            scope="col",
            class_="num" if sort == "number" else None,
            data_sort=sort,
            data_order=" ".join(NUMERICS_ORDER) if sort == "order" else None,
        )
        for title, sort in columns
    )
    table = tag(
        "table",
        tag("caption", "All sites", class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="sites",
        id=f"{of}site-table",
        data_shown=SHOWN,
    )
    parts = [
        _filters(sites, of),
        scroller("Sites", table),
        tag("button", "Show all rows", type="button", id=f"{of}show-all", hidden=True),
        note(_LEGEND) if proved else None,
        *_limits(len(sites)),
    ]
    return [Section("sites", "Sites", join(parts), len(sites))]


def _limits(count: int) -> list[Markup]:
    """What the page leaves out of a very large model."""
    left_out = []
    if count > DETAILED:
        left_out.append(
            f"Of {plural(count, 'site')}, the first {DETAILED:,} open, and those whose proof"
            " failed. Rows of the others hold their numbers; --format json lists all."
        )
    if count > LISTED:
        left_out.append(f"The table ends after {LISTED:,} rows.")
    return [note(text) for text in left_out]


def _filters(sites: Sequence[Site], of: str) -> Markup:
    """Controls that do nothing without JavaScript, and are hidden without it."""
    classes = {site.numerics for site in sites}
    choices: dict[str, tuple[str, Sequence[str]]] = {
        "numerics": ("Numerics", [name for name in NUMERICS_ORDER if name in classes]),
        "op": ("Operator", sorted({shortened(site.op, 80) for site in sites})[:100]),
        "dtype": ("Type", sorted({shortened(site.dtype, 40) for site in sites})[:100]),
    }
    search = tag(
        "input",
        type="search",
        id=f"{of}filter-text",
        autocomplete="off",
        spellcheck="false",
        placeholder="name, module, node",
    )
    fields = [tag("label", "Search ", search)]
    titles = [title for title, _ in _COLUMNS]
    for name, (title, values) in choices.items():
        options = [tag("option", "all", value="")]
        options += [tag("option", value, value=value) for value in values]
        column = titles.index(title)
        select = tag("select", *options, id=f"{of}filter-{name}", data_column=column)
        fields.append(tag("label", f"{title} ", select))
    fields.append(tag("button", "Reset", type="button", id=f"{of}filter-reset"))
    count = plural(len(sites), "site")
    fields.append(tag("output", count, id=f"{of}filter-count", for_=f"{of}filter-text"))
    return tag(
        "div",
        *fields,
        class_="filters",
        id=f"{of}filters",
        role="search",
        aria_label=f"Sites {of.removesuffix('-')}".rstrip(),
        hidden=True,
    )


def _site_rows(
    site: Site,
    index: int,
    rewrite: Rewrite,
    explained: bool,
    columns: Sequence[tuple[str, str]],
    row_id: str,
) -> Markup:
    """The row, and that below it which holds the rest."""
    cells = _cells(site, rewrite, explained)
    row = [tag("th", cells[0], scope="row")]
    row += [
        tag("td", cell, class_="num" if sort == "number" else None)
        for cell, (_, sort) in zip(cells[1:], columns[1:], strict=False)
    ]
    failed = site.proof is not None and not site.proof.passed
    rows = [tag("tr", *row, id=row_id, class_="rest" if index >= SHOWN else None)]
    if index < DETAILED or failed:
        summary = tag("summary", "Details of ", code(site.name, 120))
        opened = tag("details", summary, _details(site, rewrite, explained))
        rows.append(tag("tr", tag("td", opened, colspan=len(columns)), class_="more"))
    return join(rows)


def _cells(site: Site, rewrite: Rewrite, explained: bool) -> list[Content]:
    """As many as there are columns, those of a proof included."""
    label, proof = rewrite.label, site.proof
    cells: list[Content] = [
        code(site.name, 200),
        tag("a", label, href=f"#{label}") if explained else label,
        code(site.op, 80),
        badge("kept", "plain") if rewrite.kept else badge(site.numerics),
        shortened(site.dtype, 40),
        "?" if site.n is None else str(site.n),
        epsilon_text(site),
    ]
    if proof is None:
        return [*cells, *("\u2013" for _ in _PROOF_COLUMNS)]
    measured = (proof.max_ulp, proof.bound_ulp, proof.error_before, proof.error_after)
    verdict = badge("holds", "good") if proof.passed else badge("FAILED", "bad")
    return [*cells, verdict, *map(number, measured)]


def _details(site: Site, rewrite: Rewrite, explained: bool) -> Markup:
    """What the row and the rewrite do not say; a script adds the graphs at ``data-graphs``."""
    label, link, graphs, proof = rewrite.label, None, None, None
    if explained:
        link = tag("a", f"{label}: facts and graphs", href=f"#{label}")
        graphs = tag("div", class_="graphs", data_graphs=label)
    if site.proof is not None:
        proof = proof_block([site.proof], 1, "this site", inputs=not explained)
    pairs = facts(
        [
            ("Name", code(site.name)),
            ("Module", None if site.module is None else code(site.module)),
            ("In", None if site.scope == "main" else code(site.scope)),
            ("Rewrite", link),
            ("Spelling", spelling(site)),
            ("Attributes", attributes(site)),
            ("Notes", paragraphs(site.notes)),
            ("Nodes", names(site.nodes, 200, most=_NODES, kind="ol")),
        ]
    )
    return tag("div", tag("div", pairs, proof, class_="about"), graphs, class_="rewrite")

"""The different rewrites of a model: what sites that differ in names alone have in common.

A model with 250 norms has a handful. Each is a group of lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.op.words import WORDS
from rmsnorm_export.printable import number, one_line, plural
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.refusals import scoped
from rmsnorm_export.show.text import (
    Block,
    Line,
    Table,
    aligned,
    badness,
    grouped,
    name_lines,
    titled,
)

MOST = 60
"""Rewrites that are listed; sites of further ones have their row in the table only."""

_TERMS = {
    "site": "One place in the graph where a norm is, with the nodes that it is made of.",
    "ulp": "The distance of a number to the next one that its type has.",
}

_PROOF_HEADS = ("proof", "ulp seen", "ulp allowed", "error before", "error after")


def _sameness(site: Site) -> tuple[object, ...]:
    """Return what the sites of one group have in common; attributes in the order of their names."""
    attributes = tuple(sorted((name, str(value)) for name, value in site.attributes.items()))
    plain = (site.op, site.spelling, site.numerics, site.dtype, site.n, str(site.epsilon))
    return (*plain, attributes, site.notes)


def _columns(site: Site) -> list[str]:
    return [
        site.op,
        site.dtype,
        "n=?" if site.n is None else f"n={site.n}",
        f"epsilon={site.epsilon:.7g}",
        site.numerics,
        " ".join(f"{name}={value}" for name, value in site.attributes.items()),
    ]


def group_blocks(sites: Sequence[Site]) -> list[Block]:
    """Return equal sites once, with their number: a line of facts, the spelling, the names."""
    groups = grouped(sites, _sameness)
    rows = aligned([[f"{len(group)} x", *_columns(group[0])] for group in groups], right=(0,))
    blocks: list[Block] = []
    for row, group in zip(rows[:MOST], groups, strict=False):
        blocks.append(row)
        if group[0].spelling:
            blocks.append(f"      was    {group[0].spelling}")
        blocks += name_lines(scoped(site.name, site.scope) for site in group)
        # Where the node is not named after it.
        modules = (one.module for one in group if one.module and one.module not in one.name)
        blocks += name_lines(modules, "from")
        blocks += [f"      note   {one_line(note)}" for note in group[0].notes]
    if len(groups) > MOST:
        blocks.append(
            f"  {plural(len(groups) - MOST, 'rewrite')} more: see the table of sites (-v)."
        )
    return blocks


def proof_lines(report: Report) -> list[Line]:
    """Return how many sites were proved, by what, and the worst that was seen."""
    proofs = [(site, site.proof) for site in report.fused if site.proof is not None]
    loading = _loading_lines(report)
    if not proofs:
        return loading
    passed = sum(proof.passed for _, proof in proofs)
    runtimes = ", ".join(dict.fromkeys(one_line(proof.runtime) for _, proof in proofs))
    holds = f"{plural(len(report.fused), 'site')} hold{'s' if len(report.fused) == 1 else ''}"
    forms = {proof.form or number for number, (_, proof) in enumerate(proofs)}
    shared = f" ({plural(len(forms), 'form')}, each site's scale)"
    shared *= len(forms) < len(proofs)
    summary = f"proofs: {passed} of {holds}{shared}, computed by {runtimes}"
    site, worst = max(proofs, key=lambda pair: badness(pair[1].max_ulp))
    where = f", at {scoped(site.name, site.scope)}" if worst.max_ulp else ""
    before = max((proof.error_before for _, proof in proofs), key=badness)
    after = max((proof.error_after for _, proof in proofs), key=badness)
    lines: list[Line] = [
        (summary, "good" if passed == len(report.fused) else "bad"),
        f"  largest difference from the original: {_distance(worst)}{where}",
        f"  largest error against float64: {number(before)} ulp before, {number(after)} ulp after",
    ]
    return [*lines, *loading] + [
        (f"  failed: {scoped(site.name, site.scope)}: {one_line(proof.reason)}", "bad")
        for site, proof in proofs
        if not proof.passed
    ]


def _loading_lines(report: Report) -> list[Line]:
    """Return whether the file loads, and where nothing is known of it."""
    loading = report.loading
    if loading is None:
        return []
    lines: list[Line] = []
    if loading.problem:
        kind = "warn" if loading.perhaps else "bad"
        lines.append((f"  does not load in {loading.runtime}: {one_line(loading.problem)}", kind))
    elif loading.runtime:
        lines.append(f"  the graph loads in {loading.runtime}, without graph optimization")
    if loading.not_loaded:
        lines.append(f"  nothing was loaded in {loading.not_loaded}")
    return lines


def gain_table(report: Report) -> Table | None:
    """Return what a session executes before and after; None where none was counted."""
    loading = report.loading
    if loading is None or loading.after is None:
        return None
    before, after = loading.before or (None, None), loading.after
    counts: dict[str, tuple[float | None, float]] = {
        "nodes executed": (before[0], after[0]),
        "norms as one kernel": (before[1], after[1]),
    }
    if loading.bytes is not None:
        first, last = loading.bytes
        counts["KiB with weights"] = (first and round(first / 1024, 1), round(last / 1024, 1))
    rows = [
        [f"  {what}", "not known" if old is None else f"{old:,}", f"{new:,}"]
        for what, (old, new) in counts.items()
    ]
    heads = (f"in {loading.runtime}, by default", "before", "after")
    return Table("", heads, rows, ("before", "after"))


def _distance(proof: Proof) -> str:
    return f"{number(proof.max_ulp)} ulp ({number(proof.bound_ulp)} allowed)"


def _proof_cells(proof: Proof | None) -> list[str]:
    """Return as many texts as ``_PROOF_HEADS``; errors are distances from float64 in ulp."""
    if proof is None:
        return ["\u2013"] * len(_PROOF_HEADS)
    verdict = "holds" if proof.passed else f"FAILED: {one_line(proof.reason, 200)}"
    measured = (proof.max_ulp, proof.bound_ulp, proof.error_before, proof.error_after)
    return [verdict, *map(number, measured)]


def word_blocks(report: Report) -> list[Block]:
    """Return what the words, the classes of numerics and the attributes of sites mean."""
    sites = (*report.fused, *report.kept)
    used = (*(site.numerics for site in sites), report.numerics)
    names = dict.fromkeys(name for site in sites for name in site.attributes)
    meanings = _TERMS | {name: WORDS.get(name, "") for name in (*used, *names)}
    return (
        [*titled("words", [Table("", ("word", "meaning"), [*meanings.items()])])] if sites else []
    )


def site_blocks(report: Report) -> list[Block]:
    """Return a table of all sites, with their proofs where there are any, and their nodes."""
    sites, fused = (*report.fused, *report.kept), len(report.fused)
    proved = any(site.proof is not None for site in sites)
    heads = ("site", "operator", "numerics", "type", "n", "epsilon", "module")
    rows = [
        [
            scoped(site.name, site.scope),
            site.op,
            site.numerics if index < fused else "kept",
            site.dtype,
            "?" if site.n is None else str(site.n),
            f"{site.epsilon:.7g}",
            site.module or "",
            *(_proof_cells(site.proof) if proved else ()),
            ", ".join(site.nodes),
        ]
        for index, site in enumerate(sites)
    ]
    heads = (*heads, *(_PROOF_HEADS if proved else ()), "nodes before")
    table = Table("", heads, rows, numbers=("n", "epsilon", *_PROOF_HEADS[1:]))
    return titled(f"sites ({len(sites):,})", [table]) if sites else []

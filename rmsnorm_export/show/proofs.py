"""Proofs of sites: as lines, and as a block of a page with the histogram of distances."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rmsnorm_export.printable import number, one_line, plural, printable
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.runtime.metrics import add_histograms
from rmsnorm_export.show.page.histogram import histogram
from rmsnorm_export.show.page.markup import Markup, badge, join, note, shortened, tag
from rmsnorm_export.show.page.plain_table import bare_table
from rmsnorm_export.show.text import Line, badness, largest


def proved(sites: Sequence[Site]) -> list[tuple[Site, Proof]]:
    """The sites that have a proof, with it."""
    return [(site, site.proof) for site in sites if site.proof is not None]


def scoped(name: str, scope: str) -> str:
    """A name, and the function or subgraph that holds it."""
    return name if scope == "main" else f"{name} in {scope}"


def proof_lines(report: Report) -> list[Line]:
    """How many sites were proved, by what, and the worst that was seen."""
    proofs = proved(report.fused)
    if not proofs:
        return []
    passed = sum(proof.passed for _, proof in proofs)
    runtimes = ", ".join(dict.fromkeys(one_line(proof.runtime) for _, proof in proofs))
    holds = f"{plural(len(report.fused), 'site')} hold{'s' if len(report.fused) == 1 else ''}"
    summary = f"proofs: {passed} of {holds}, computed by {runtimes}"
    style = "green" if passed == len(report.fused) else "bold red"
    site, worst = max(proofs, key=lambda pair: badness(pair[1].max_ulp))
    where = f", at {printable(scoped(site.name, site.scope))}" if worst.max_ulp else ""
    before = largest(proof.error_before for _, proof in proofs)
    after = largest(proof.error_after for _, proof in proofs)
    lines: list[Line] = [
        (summary, style),
        f"  largest difference from the original: {_distance(worst)}{where}",
        f"  largest error against float64: {number(before)} ulp before, {number(after)} ulp after",
    ]
    for site, proof in proofs:
        if not proof.passed:
            name = printable(scoped(site.name, site.scope))
            lines.append((f"  failed: {name}: {proof_text(proof)}", "red"))
    return lines


def proof_text(proof: Proof) -> str:
    """One proof on one line."""
    verdict = "holds" if proof.passed else f"FAILED ({one_line(proof.reason)})"
    return (
        f"{verdict}: {_distance(proof)}, {proof.mismatch:.2%} of elements differ; error against"
        f" float64 {number(proof.error_before)} ulp before, {number(proof.error_after)} after"
    )


def _distance(proof: Proof) -> str:
    return f"{number(proof.max_ulp)} ulp ({number(proof.bound_ulp)} allowed)"


def proof_block(proofs: Sequence[Proof], sites: int, label: str, *, inputs: bool = True) -> Markup:
    """What proofs say together: bounds and what was seen, and the histogram of distances.

    Args:
        proofs: one or more.
        sites: of as many sites.
        label: what the reader knows them as.
        inputs: say too what computed them on which rows.
    """
    held = sum(proof.passed for proof in proofs)
    worst = max(proofs, key=lambda proof: badness(proof.max_ulp))
    verdict = f"{held} of {sites} hold" if sites > 1 else "holds" if held else "FAILED"
    reason = next((proof.reason for proof in proofs if not proof.passed), "")
    before = number(largest(proof.error_before for proof in proofs))
    after = number(largest(proof.error_after for proof in proofs))
    seen = bare_table(
        join(["Proof: ", badge(verdict, "good" if held == sites else "bad")]),
        ("", "seen", "allowed"),
        [
            ("largest distance, ulp", number(worst.max_ulp), number(worst.bound_ulp)),
            ("elements that differ", f"{largest(p.mismatch for p in proofs):.2%}", ""),
            ("largest difference", number(largest(p.max_abs for p in proofs)), ""),
            ("error against float64, ulp: old nodes", before, ""),
            ("error against float64, ulp: new nodes", after, ""),
        ],
        class_="small",
    )
    counts = functools.reduce(add_histograms, (proof.ulp_histogram for proof in proofs))
    bars = histogram(counts, f"{label}, new against old")
    title = tag("figcaption", "Elements by distance in ulp, logarithmic")
    return tag(
        "div",
        seen,
        tag("p", one_line(reason), class_="bad-text") if reason else None,
        tag("figure", title, bars) if bars else None,
        _computed_by(proofs) if inputs else None,
        class_="proof",
    )


def _computed_by(proofs: Sequence[Proof]) -> Markup | None:
    runtimes = list(dict.fromkeys(shortened(proof.runtime, 120) for proof in proofs))[:4]
    cases = list(dict.fromkeys(case for proof in proofs for case in proof.cases))[:20]
    parts = [f"Computed by {', '.join(runtimes)}"] if any(runtimes) else []
    parts += [f"rows: {', '.join(map(one_line, cases))}"] if cases else []
    return note(f"{'; '.join(parts)}.") if parts else None

"""Proofs of sites, as lines and as cells of a table."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import number, one_line, plural, printable
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.rewrite.result import Report, Site
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


PROOF_HEADS = ("Proof", "Ulp seen", "Ulp allowed", "Error before", "Error after")


def proof_cells(proof: Proof | None) -> list[str]:
    """Return as many texts as ``PROOF_HEADS``; errors are distances from float64 in ulp."""
    if proof is None:
        return ["\u2013"] * len(PROOF_HEADS)
    verdict = "holds" if proof.passed else f"FAILED: {one_line(proof.reason, 200)}"
    measured = (proof.max_ulp, proof.bound_ulp, proof.error_before, proof.error_after)
    return [verdict, *map(number, measured)]

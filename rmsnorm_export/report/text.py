"""A report as text for a person: one line that says it all, groups, then every refusal.

Made for a model with 200 norms: sites that differ in nothing but their name are one group. Lines
are never cut (logs get grepped), and every string that comes from the model is escaped first
(``names.printable``).
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from rmsnorm_export.report.names import collapse, one_line, printable
from rmsnorm_export.report.result import Proof, Refusal, Report, Site

_FAMILIES = 4
"""Name families shown per group; a group of a real model has one or two."""

Line = str | tuple[str, str]
"""A line of text, or a line and the rich style of the whole of it."""


def render(lines: Iterable[Line], *, styled: bool = False, width: int | None = None) -> str:
    """``lines`` as one string.

    Args:
        lines: what to print.
        styled: with terminal styles.
        width: of a terminal: longer lines are continued, indented, between words. None: no line is
            broken, so that a log can be searched. Nothing is ever cut.
    """
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=styled,
        color_system="standard" if styled else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for line in lines:
        text, style = (line, "") if isinstance(line, str) else line
        for part in [text.rstrip()] if width is None else _continued(text, width):
            console.print(Text(part, style=style), soft_wrap=True)
    return buffer.getvalue()


def _continued(text: str, width: int) -> list[str]:
    """``text`` in lines of ``width``, unless a single word is longer."""
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    wrapped = textwrap.wrap(
        text.rstrip(),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped or [""]


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """``rows`` with aligned columns, those in ``right`` to the right; the last is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def report_lines(
    report: Report, *, planned: bool = False, verbose: int = 0, output: Sequence[str] = ()
) -> list[Line]:
    """The lines of a report.

    Args:
        report: outcome of ``optimize`` or ``inspect``.
        planned: nothing was changed (``inspect``), so say what can be, not what is.
        verbose: 1 or more lists every site; -1 or less keeps the first line only.
        output: lines that say where the output went (``optimize``).
    """
    lines: list[Line] = [head(report, planned=planned)]
    if verbose < 0:
        return lines
    lines.append("  " + _about(report))
    sections = [("fusable" if planned else "fused", report.fused), ("kept as is", report.kept)]
    for title, sites in sections:
        if sites:
            lines += ["", (f"{title} ({len(sites)})", "bold")]
            lines += _site_list(sites) if verbose > 0 else _groups(sites)
    if report.refused:
        lines += ["", (f"refused ({len(report.refused)}): left as they were", "bold yellow")]
        lines += _refusals(report.refused)
    proofs = proof_lines(report)
    if proofs:
        lines += ["", *proofs]
    if report.notes:
        lines += ["", *(f"note: {one_line(note)}" for note in report.notes)]
    if output:
        lines += ["", *output]
    return lines


def head(report: Report, *, planned: bool = False) -> Line:
    """The line that says it all.

    What was refused may be a look-alike rather than a norm, so where anything was refused the
    total counts candidates.
    """
    fused, kept, refused = len(report.fused), len(report.kept), len(report.refused)
    total = fused + kept + refused
    if total == 0:
        return ("no RMSNorm found, and nothing that looks like one", "bold yellow")
    what = "RMSNorm candidate" if refused else "RMSNorm"
    verb = "can be one node" if planned else "is one node" if total == 1 else "are one node"
    parts = [f"{fused} fusable" if planned else f"{fused} fused"]
    if kept:
        parts.append(f"{kept} already one node")
    parts.append(f"{refused} refused")
    plural = "" if total == 1 else "s"
    style = "bold yellow" if refused else "bold green"
    return (f"{fused + kept} of {total} {what}{plural} {verb}: {', '.join(parts)}", style)


def _about(report: Report) -> str:
    target = f"target {report.target}" if report.target else "no target"
    opset = f"opset {report.opset_before}"
    if report.opset_after != report.opset_before:
        opset += f" -> {report.opset_after}"
    nodes = f"{report.nodes_before:,} nodes"
    if report.nodes_after != report.nodes_before:
        nodes += f" -> {report.nodes_after:,}"
    parts = [printable(report.source), target, f"numerics {report.numerics}", opset, nodes]
    return " | ".join([*parts, f"{report.seconds:.2f} s"])


def _key(site: Site) -> tuple[object, ...]:
    """What the sites of one group have in common; attributes in the order of their names."""
    return (
        site.op,
        site.spelling,
        site.numerics,
        site.dtype,
        site.n,
        site.epsilon,
        tuple(sorted((k, str(v)) for k, v in site.attributes.items())),
        site.notes,
    )


def _columns(site: Site) -> list[str]:
    return [
        printable(site.op),
        printable(site.dtype),
        "n=?" if site.n is None else f"n={site.n}",
        f"epsilon={site.epsilon:.7g}",
        site.numerics,
        " ".join(f"{printable(k)}={printable(str(v))}" for k, v in site.attributes.items()),
    ]


def _groups(sites: Sequence[Site]) -> list[Line]:
    """Equal sites once, with their number: a line of facts, the spelling, the names."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        groups.setdefault(_key(site), []).append(site)
    members = sorted(groups.values(), key=len, reverse=True)
    facts = table([[f"{len(group)} x", *_columns(group[0])] for group in members], right=(0,))
    lines: list[Line] = []
    for fact, group in zip(facts, members, strict=True):
        lines.append("  " + fact)
        if group[0].spelling:
            lines.append(f"      was    {printable(group[0].spelling)}")
        families = collapse(_scoped(site) for site in group)
        for i, family in enumerate(families[:_FAMILIES]):
            lines.append(f"      {'nodes' if i == 0 else '':5}  {family}")
        if len(families) > _FAMILIES:
            rest = len(families) - _FAMILIES
            lines.append(f"             and {rest} more kinds of name (-v lists all)")
        lines += [f"      note   {one_line(note)}" for note in group[0].notes]
    return lines


def _site_list(sites: Sequence[Site]) -> list[Line]:
    """Every site: a line of facts and, where asked for, of its proof; then what it replaces."""
    facts = table([[printable(_scoped(site)), *_columns(site)] for site in sites])
    lines: list[Line] = []
    for fact, site in zip(facts, sites, strict=True):
        lines.append("  " + fact)
        if site.nodes:
            names = ", ".join(printable(node) for node in site.nodes)
            lines.append(f"      was    {printable(site.spelling)}: {names}")
        if site.proof is not None:
            lines.append(f"      proof  {_proof(site.proof)}")
        lines += [f"      note   {one_line(note)}" for note in site.notes]
    return lines


def _scoped(site: Site) -> str:
    return site.name if site.scope == "main" else f"{site.name} in {site.scope}"


def _refusals(refused: Sequence[Refusal]) -> list[Line]:
    """Every refusal, those with the same reason and the same advice under one heading."""
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refused:
        key = (refusal.reason, refusal.message, refusal.hint)
        groups.setdefault(key, []).append(refusal)
    lines: list[Line] = []
    for (reason, message, hint), members in groups.items():
        count = f" ({len(members)})" if len(members) > 1 else ""
        lines.append((f"  {printable(reason)}{count}: {one_line(message)}", "yellow"))
        for refusal in members:
            place = "" if refusal.scope == "main" else f" in {printable(refusal.scope)}"
            lines.append(
                f"      {printable(refusal.node)} [{printable(refusal.op)}]{place}:"
                f" {one_line(refusal.found)}"
            )
        if hint:
            lines.append(f"      fix: {one_line(hint)}")
    return lines


def proof_lines(report: Report) -> list[Line]:
    """How many sites were proved, by what, and the worst that was seen."""
    proofs = [(site, site.proof) for site in report.fused if site.proof is not None]
    if not proofs:
        return []
    passed = sum(proof.passed for _, proof in proofs)
    runtimes = ", ".join(dict.fromkeys(one_line(proof.runtime) for _, proof in proofs))
    summary = f"proofs: {passed} of {len(report.fused)} sites hold, computed by {runtimes}"
    style = "green" if passed == len(report.fused) else "bold red"
    site, worst = max(proofs, key=lambda pair: _rank(pair[1].max_ulp))
    lines: list[Line] = [
        (summary, style),
        f"  largest difference {number(worst.max_ulp)} ulp"
        f" (allowed {number(worst.bound_ulp)}) at {printable(_scoped(site))}",
        f"  largest error against float64"
        f" {number(_largest(p.error_before for _, p in proofs))} ulp before,"
        f" {number(_largest(p.error_after for _, p in proofs))} ulp after",
    ]
    lines += [
        (f"  failed: {printable(_scoped(site))}: {_proof(proof)}", "red")
        for site, proof in proofs
        if not proof.passed
    ]
    return lines


def _proof(proof: Proof) -> str:
    verdict = "holds" if proof.passed else f"FAILED ({one_line(proof.reason)})"
    return (
        f"{verdict}: {number(proof.max_ulp)} ulp of {number(proof.bound_ulp)} allowed,"
        f" {proof.mismatch:.2%} of elements differ, largest difference {number(proof.max_abs)},"
        f" error against float64 {number(proof.error_before)} ->"
        f" {number(proof.error_after)} ulp, {one_line(proof.runtime)}"
    )


def _rank(value: float) -> float:
    """Order for worst-of: what is not a number is worse than all."""
    return math.inf if math.isnan(value) else value


def _largest(values: Iterable[float]) -> float:
    return max(values, key=_rank)


def number(value: float) -> str:
    """A measured number: three significant digits, integers as such."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"

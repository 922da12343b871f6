"""The report of ``optimize`` and ``inspect``.

Made for a model with 200 norms: as text it is one line that says it all, then groups of sites, and
of refusals, that differ in nothing but their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.numerics import NUMERICS_MEANING
from rmsnorm_export.printable import collapse, number, one_line, plural, printable
from rmsnorm_export.rewrite.result import Fusions, Report, Site
from rmsnorm_export.show.page import Facts, Page, Section, Table
from rmsnorm_export.show.proofs import proof_lines, proved
from rmsnorm_export.show.refusals import APART, reasons_of, refusal_lines, refusal_sections
from rmsnorm_export.show.rewrites import (
    MOST,
    epsilon_text,
    group_lines,
    rewrite_sections,
    rewrites_of,
    site_lines,
)
from rmsnorm_export.show.text import Line, Verdict, headline, largest, note_lines, text_of

ARROW = "\u2192"


def _report_verdict(report: Report) -> Verdict:
    """Good where no RMSNorm is left as it was."""
    good = (report.fused or report.kept) and not report.unfused
    return report.headline(), "good" if good else "warn"


def _change(before: int, after: int, arrow: str, noun: str = "") -> str:
    """A number, or what it was and what it became."""
    first = plural(before, noun) if noun else f"{before:,}"
    return first if before == after else f"{first} {arrow} {after:,}"


def _nodes(report: Report, arrow: str, noun: str = "") -> str:
    """The number of nodes, and the functions that the result counts as one node each."""
    text = _change(report.nodes_before, report.nodes_after, arrow, noun)
    counted = report.functions if report.nodes_after != report.nodes_before else 0
    return f"{text} + {plural(counted, 'function')}" if counted else text


def report_lines(report: Report, *, verbose: int = 0, output: Sequence[str] = ()) -> list[Line]:
    """The lines of a report; with ``verbose`` above 0 every site is listed.

    Args:
        report: outcome of ``optimize`` or ``inspect``.
        verbose: as for ``show.show_lines``.
        output: lines that say where the output went (``optimize``).
    """
    lines: list[Line] = [headline(_report_verdict(report))]
    if verbose < 0:
        return lines
    opset = _change(report.opset_before, report.opset_after, "->")
    target = f"target {report.target}" if report.target else "no target"
    lines += [
        f"  {printable(report.source)}: opset {opset}, {_nodes(report, '->', 'node')}",
        f"  {target}, numerics {report.numerics}, {report.seconds:.2f} s",
    ]
    done = "fusable" if report.planned else "fused"
    if TARGETS[report.target or "portable"].form != "one node":
        done = "written out"
    sections = [(done, report.fused), ("kept as is", report.kept)]
    for title, sites in sections:
        if sites:
            lines += ["", (f"{title} ({len(sites)})", "bold")]
            lines += site_lines(sites) if verbose > 0 else group_lines(sites)
    if refused := report.unfused:
        title = "cannot be fused" if report.planned else "were not fused"
        lines += ["", (f"refused ({len(refused)}): RMSNorms that {title}", "bold yellow")]
        lines += refusal_lines(refused, verbose=verbose)
    for kind, (what, where) in APART.items():
        if apart := report.apart(kind):
            lines += ["", (f"{what} ({len(apart)}): nodes {where} that are not in its", "bold")]
            lines += refusal_lines(apart, verbose=verbose)
    if alike := report.look_alikes:
        lines += ["", (f"look-alikes ({len(alike)}): no RMSNorms, left alone", "bold")]
        lines += refusal_lines(alike, verbose=verbose)
    if report.fusions is not None:
        lines += ["", *fusion_lines(report.fusions)]
    for part in (proof_lines(report), _runner_lines(report), note_lines(report.notes), output):
        lines += ["", *part] if part else []
    return lines


def report_tables(report: Report) -> list[Table]:
    """Return the kinds of sites, and what was refused for which reason."""
    kinds = [
        (
            f"{len(kind.sites):,}",
            kind.sites[0].op,
            kind.sites[0].dtype,
            "?" if kind.sites[0].n is None else f"{kind.sites[0].n:,}",
            epsilon_text(kind.sites[0]),
            "kept" if kind.kept else kind.sites[0].numerics,
            _held(kind.sites),
            collapse(site.name for site in kind.sites)[0],
        )
        for kind in rewrites_of(report)[:MOST]
    ]
    reasons = [
        (f"{len(group):,}", group[0].reason, group[0].kind, one_line(group[0].message))
        for group in reasons_of([*report.refused, *report.unfolded])
    ]
    heads = ("Sites", "Operator", "Type", "n", "Epsilon", "Numerics", "Proofs", "Names")
    tables = [Table("RMSNorms", heads, kinds, numbers=("Sites", "n"))] if kinds else []
    if reasons:
        columns = ("Nodes", "Reason", "Kind", "Why it stays")
        tables.append(Table("Left as it was", columns, reasons, numbers=("Nodes",)))
    return tables


def _held(sites: Sequence[Site]) -> str:
    proofs = [proof for _, proof in proved(sites)]
    return f"{sum(p.passed for p in proofs)} of {len(sites)} hold" if proofs else "not proved"


def fusion_lines(fusions: Fusions) -> list[Line]:
    """What transformers' fusions did; which one was left out, and why."""
    lines: list[Line] = [(one_line(fusions.summary()), "bold")]
    if fusions.left_out:
        lines.append((f"  left out: {one_line(fusions.left_out)}", "yellow"))
        lines.append(f"    {one_line(fusions.problem)}")
    if fusions.compared:
        lines.append(f"  {one_line(fusions.compared)}")
    if fusions.not_compared:
        lines.append((f"  not compared: {one_line(fusions.not_compared)}", "yellow"))
    return lines


def _runner_lines(report: Report) -> list[Line]:
    """Who runs the file: a line of names, and one for each reason why others do not."""
    if not report.runs_in:
        return []
    reasons = Counter(entry.reason for entry in report.runs_in if entry.reason)
    lines: list[Line] = [f"  runs in {_runners(report)}"]
    for reason in reasons:
        names = [entry.runtime for entry in report.runs_in if entry.reason == reason]
        lines.append(f"  not in {', '.join(names)}: {one_line(reason)}")
    for open_ in dict.fromkeys(entry.unknown for entry in report.runs_in if entry.unknown):
        names = [entry.runtime for entry in report.runs_in if entry.unknown == open_]
        lines.append(f"  {', '.join(names)}: {one_line(open_)}")
    return lines


def _runners(report: Report) -> str:
    """The runtimes that run the file, each with the first version of which that is known."""
    names = [
        f"{entry.runtime} {entry.since}+{' (not tried)' if entry.evidence == 'read' else ''}"
        for entry in report.runs_in
        if not entry.reason
    ]
    return ", ".join(names) or "no runtime of the table"


def report_page(report: Report) -> Page:
    """Return the page of a report; sites are drawn where it was made with ``drawings=True``."""
    text, kind = _report_verdict(report)
    lines = [f"{entry.runtime} {entry.versions}: {entry.reason}" for entry in report.runs_in]
    facts: list[tuple[str, str | Sequence[str]]] = [
        ("Model", report.source),
        ("Target", report.target or "none: what is an RMSNorm at all"),
        ("Numerics up to", report.numerics),
        ("Opset", _change(report.opset_before, report.opset_after, ARROW)),
        ("Nodes", _nodes(report, ARROW)),
        ("Runs in", _runners(report) if report.runs_in else ""),
        (
            "Does not run in",
            [one for one, entry in zip(lines, report.runs_in, strict=True) if entry.reason],
        ),
        ("Not known", [f"{e.runtime}: {e.unknown}" for e in report.runs_in if e.unknown]),
        ("Fusions", [] if report.fusions is None else _plain(fusion_lines(report.fusions))),
        ("Notes", [one_line(note) for note in report.notes]),
        ("Time", f"{report.seconds:.2f} s"),
    ]
    return Page(
        "RMSNorm report",
        report.source,
        [(text, "bad" if report.unproved else kind)],
        [Facts(facts), *_classes(report)],
        report_sections(report),
        _key_numbers(report),
    )


def report_sections(report: Report) -> list[Section]:
    """Return all but the summary: rewrites, sites, refusals, look-alikes, where there are any."""
    return [*rewrite_sections(report), *refusal_sections(report)]


def _plain(lines: Sequence[Line]) -> list[str]:
    return [text_of(line).strip() for line in lines]


def _key_numbers(report: Report) -> list[tuple[str, str]]:
    """Return the numbers that carry the verdict."""
    shown = [
        (f"{len(report.fused):,}", "fusable" if report.planned else "fused"),
        (f"{len(report.kept):,}", "already one node"),
        (f"{len(report.unfused):,}", "refused"),
        (f"{len(report.look_alikes):,}", "look-alikes"),
    ]
    if residuals := report.folded + len(report.apart("residual")):
        shown.insert(2, (f"{report.folded:,} of {residuals:,}", "residuals folded"))
    if report.nodes_after != report.nodes_before:
        shown.append((_change(report.nodes_before, report.nodes_after, ARROW), "nodes"))
    if proofs := [proof for _, proof in proved(report.fused)]:
        held = sum(proof.passed for proof in proofs)
        shown.append((f"{held:,} of {len(report.fused):,}", "proofs hold"))
        shown.append((number(largest(p.max_ulp for p in proofs)), "ulp, largest distance"))
    return shown


def _classes(report: Report) -> list[Table]:
    """Return how many sites have which class, and what the class promises."""
    counts = Counter(site.numerics for site in report.fused)
    rows = [
        (name, f"{counts[name]:,}", meaning)
        for name, meaning in NUMERICS_MEANING.items()
        if counts[name]
    ]
    heads = ("Class", "Sites", "Promise")
    return [Table("Numerics of the rewrites", heads, rows, numbers=("Sites",))] if rows else []

"""A folder of graphs: what became of the norms of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.printable import plural, printable
from rmsnorm_export.rewrite.result import GenerationExport
from rmsnorm_export.show.page import Facts, Page, Table
from rmsnorm_export.show.report import report_lines, report_sections, report_tables
from rmsnorm_export.show.text import Line, Verdict, headline


def _generation_verdict(export: GenerationExport) -> Verdict:
    """Good where no RMSNorm of any graph is left as it was."""
    if not export.reports or not any(
        (*report.fused, *report.kept, *report.unfused) for report in export.reports.values()
    ):
        return f"no RMSNorm found in {plural(len(export.reports), 'graph')}", "warn"
    every = [one for report in export.reports.values() for one in (*report.fused, *report.kept)]
    left = [one for report in export.reports.values() for one in report.unfused]
    total = len(every) + len(left)
    verb = "can be" if export.planned else "is" if total == 1 else "are"
    graphs = plural(len(export.reports), "graph")
    fusions = [report.fusions for report in export.reports.values() if report.fusions]
    inside = sum(fusion.norms for fusion in fusions)
    text = f"{len(every)} of {plural(total, 'RMSNorm')} {verb} one node, in {graphs}"
    text += f"; {inside} of them in attention" if inside else ""
    return text, "good" if every and not left else "warn"


def generation_lines(
    export: GenerationExport, *, verbose: int = 0, output: Sequence[str] = ()
) -> list[Line]:
    """The lines of a folder; with ``verbose`` above 0 every site of every graph."""
    lines: list[Line] = [headline(_generation_verdict(export))]
    if verbose < 0:
        return lines
    for name, report in export.reports.items():
        shown = report_lines(report, verbose=verbose)
        lines += ["", (printable(name), "bold"), *shown]
    return [*lines, "", *output] if output else lines


def generation_tables(export: GenerationExport) -> list[Table]:
    """Return the verdict on each graph, then its norms."""
    rows = [(name, report.headline()) for name, report in export.reports.items()]
    tables = [table for report in export.reports.values() for table in report_tables(report)]
    return [Table("Graphs", ("Graph", "RMSNorms"), rows, names=("Graph",)), *tables]


def generation_page(export: GenerationExport) -> Page:
    """Return the page of a folder: the rewrites, sites and refusals of each graph."""
    text, kind = _generation_verdict(export)
    unproved = any(report.unproved for report in export.reports.values())
    facts = Facts(
        [
            ("Folder", str(export.path)),
            ("Files", [path.name for path in export.files]),
            ("Time", f"{export.seconds:.1f} s"),
        ]
    )
    sections = [
        dataclasses.replace(part, title=f"{part.title} of {name}")
        for name, report in export.reports.items()
        for part in report_sections(report)
    ]
    verdict = (text, "bad" if unproved else kind)
    return Page("Graphs of a folder", export.path.name, [verdict], [facts], sections)

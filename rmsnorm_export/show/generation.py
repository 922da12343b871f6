"""The export of a decoder: what became of the norms of each of its graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.printable import plural, printable
from rmsnorm_export.rewrite.result import GenerationExport
from rmsnorm_export.show.page.document import About, Section, document, summary
from rmsnorm_export.show.page.markup import code, facts, names
from rmsnorm_export.show.report import report_lines, report_sections
from rmsnorm_export.show.text import Line, Verdict, headline


def _generation_verdict(export: GenerationExport) -> Verdict:
    """Good where no RMSNorm of any graph is left as it was."""
    every = [one for report in export.reports.values() for one in (*report.fused, *report.kept)]
    left = [one for report in export.reports.values() for one in report.unfused]
    total = len(every) + len(left)
    text = (
        f"{len(every)} of {total} RMSNorms are one node, in {plural(len(export.reports), 'graph')}"
    )
    return text, "good" if every and not left else "warn"


def generation_lines(
    export: GenerationExport, *, verbose: int = 0, output: Sequence[str] = ()
) -> list[Line]:
    """The lines of an export; with ``verbose`` above 0 every site of every graph."""
    lines: list[Line] = [headline(_generation_verdict(export))]
    if verbose < 0:
        return lines
    for name, report in export.reports.items():
        lines += ["", (printable(name), "bold"), *report_lines(report, verbose=verbose)]
    return [*lines, "", *output]


def generation_page(
    export: GenerationExport, *, about: About, sections: Sequence[Section] = ()
) -> str:
    """The page of an export: the rewrites, sites and refusals of each graph."""
    pairs = [
        ("Folder", code(str(export.path))),
        ("Files", names([path.name for path in export.files])),
        ("Time", f"{export.seconds:.1f} s"),
        *about.pairs(),
    ]
    text, kind = _generation_verdict(export)
    unproved = any(report.unproved for report in export.reports.values())
    verdict = (text, "bad" if unproved or about.problem else kind)
    parts = [summary([verdict], about, facts(pairs, "facts wide"))]
    for name, report in export.reports.items():
        parts += [
            dataclasses.replace(part, id=f"{name}-{part.id}", title=f"{part.title} of {name}")
            for part in report_sections(report)
        ]
    return document("Export of a decoder", export.path.name, [*parts, *sections])

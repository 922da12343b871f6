"""A folder of graphs, one after the other: what became of the norms of each, or what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmsnorm_export.decoder.bundle import Components
from rmsnorm_export.decoder.result import GenerationExport
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.printable import plural
from rmsnorm_export.show import sections_of, show_blocks
from rmsnorm_export.show.page import Section
from rmsnorm_export.show.text import Line, flat, style_of, text_of, titled


def generation_export_blocks(
    export: GenerationExport, *, verbose: int = 0, output: Sequence[str] = ()
) -> list[Line]:
    """Return the lines of a folder; with ``verbose`` above 0 every site of every graph."""
    lines = [_generation_verdict(export), *_blocks(export.reports, verbose)]
    return [*lines, "", *output] if output and verbose >= 0 else lines


def generation_export_sections(export: GenerationExport) -> list[Section]:
    """Return the sections of each graph, after a verdict on each."""
    return _sections(export.reports)


def components_blocks(result: Components, *, verbose: int = 0) -> list[Line]:
    """Return the verdict on each component, then its lines under its name."""
    return [*_verdicts(result.results), *_blocks(result.results, verbose)]


def components_sections(result: Components) -> list[Section]:
    """Return the sections of each component."""
    return _sections(result.results)


def _blocks(results: Mapping[str, Any], verbose: int) -> list[Line]:
    lines: list[Line] = []
    blocks = {n: flat(show_blocks(one, verbose=verbose)) for n, one in results.items()}
    # What is next for several graphs is said once, at the end.
    last = {text_of(line): name for name, own in blocks.items() for line in own}
    for name, own in blocks.items() if verbose >= 0 else ():
        texts = [(line, text_of(line)) for line in own]
        own = [line for line, text in texts if not text.startswith("next:") or last[text] == name]
        lines += titled(name, own)
    return lines


def _verdicts(results: Mapping[str, Any]) -> list[Line]:
    return [
        (f"{name}: {text_of(line)}", style_of(line))
        for name, one in results.items()
        for line in flat(show_blocks(one, verbose=-1))
    ]


def _sections(results: Mapping[str, Any]) -> list[Section]:
    parts = [section for name, one in results.items() for section in sections_of(one, name)]
    return [Section("Graphs", _verdicts(results)), *parts]


def _generation_verdict(export: GenerationExport) -> Line:
    """Return the verdict: good where no RMSNorm of any graph stays as it was."""
    reports = export.reports.values()
    done = sum(len(report.fused) + len(report.kept) for report in reports)
    total = done + sum(len(report.unfused) for report in reports)
    graphs = plural(len(reports), "graph")
    if total == 0:
        return f"no RMSNorm found in {graphs}", "warn"
    verb = "can be" if export.planned else "is" if total == 1 else "are"
    inside = sum(report.fusions.norms for report in reports if report.fusions is not None)
    form = TARGETS[next(iter(reports)).target or "portable"].form
    text = f"{done} of {plural(total, 'RMSNorm')} {verb} {form}, in {graphs}"
    text += f"; {inside} of them in attention" if inside else ""
    if any(report.unproved for report in reports):
        return text, "bad"
    return text, "good" if done == total else "warn"

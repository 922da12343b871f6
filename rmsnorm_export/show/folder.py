"""A folder of graphs, one after the other: what became of the norms of each, or what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmsnorm_export.decoder.bundle import Components
from rmsnorm_export.decoder.result import GenerationExport
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.printable import plural
from rmsnorm_export.show import show_blocks
from rmsnorm_export.show.report import undone_lines
from rmsnorm_export.show.text import Block, Line, Table, ending, flat, style_of, text_of, under


def generation_export_blocks(
    export: GenerationExport, *, verbose: int = 0, output: Sequence[str] = ()
) -> list[Block]:
    """Return the lines of a folder; with ``verbose`` above 0 every site of every graph."""
    blocks = [_generation_verdict(export), *_blocks(export.reports, verbose)]
    if verbose < 0:
        return blocks + undone_lines(export.reports.values())
    return [*blocks, *ending(output, verbose)]


def components_blocks(result: Components, *, verbose: int = 0) -> list[Block]:
    """Return the verdict on each component, then its lines under its name."""
    verdicts = [
        (f"{name}: {text_of(line)}", style_of(line))
        for name, one in result.results.items()
        for line in flat(show_blocks(one, verbose=-1))
    ]
    return [*verdicts, *_blocks(result.results, verbose)]


def _blocks(results: Mapping[str, Any], verbose: int) -> list[Block]:
    if verbose < 0:
        return []
    own = {name: show_blocks(one, verbose=verbose) for name, one in results.items()}
    # What is next for several graphs is said once, at the end.
    last = {_next_step(block): name for name, blocks in own.items() for block in blocks}
    last[""] = ""
    return [
        line
        for name, blocks in own.items()
        for line in under(name, [b for b in blocks if last[_next_step(b)] in (name, "")])
    ]


def _next_step(block: Block) -> str:
    """Return the line that says what is next; "" of any other."""
    text = "" if isinstance(block, Table) else text_of(block)
    return text if text.startswith("next:") else ""


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

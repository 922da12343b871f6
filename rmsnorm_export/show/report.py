"""The report of ``optimize`` and ``inspect``.

Made for a model with 200 norms: as text it is one line that says it all, then groups of sites, and
of refusals, that differ in nothing but their names. What ``optimize`` has done is not listed unless
``-v`` asks for it, which a page does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from packaging.version import Version

from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.precision.result import Precision
from rmsnorm_export.printable import one_line, plural, short
from rmsnorm_export.quantize.result import Quantization
from rmsnorm_export.rewrite.result import Fusions, Report
from rmsnorm_export.runtime.consumers import BY_NAME, ENGINES, RunsIn
from rmsnorm_export.show.health import health_lines
from rmsnorm_export.show.precision import precision_lines
from rmsnorm_export.show.refusals import refusal_blocks
from rmsnorm_export.show.rewrites import (
    gain_table,
    group_blocks,
    proof_lines,
    site_blocks,
    word_blocks,
)
from rmsnorm_export.show.text import Block, Line, ending, note_lines, style_of, text_of, titled
from rmsnorm_export.system.packages import version_of


def report_blocks(report: Report, *, verbose: int = 0, output: Sequence[str] = ()) -> list[Block]:
    """Return the lines of a report; with ``verbose`` above 0 every site and refusal has a row.

    Args:
        report: outcome of ``optimize`` or ``inspect``.
        verbose: as for ``show.show_blocks``.
        output: lines that say where the output went (``optimize``).
    """
    # Good where no RMSNorm stays as it was, bad where a proof fails.
    good = (report.fused or report.kept) and not report.unfused
    kind = "bad" if report.unproved else "good" if good else "warn"
    lines: list[Block] = [(report.headline(), kind)]
    if verbose < 0:
        return lines + undone_lines([report])
    lines += _facts(report)
    detailed = verbose > 0
    details = _listed(report, detailed=detailed)
    details += [*refusal_blocks(report, detailed=detailed), *health_lines(report, verbose=verbose)]
    notes = [] if report.planned or detailed else _site_notes(report)
    closing: list[Line] = [*notes, *output]
    if detailed:
        table = gain_table(report)
        outcome = [*([] if table is None else [table]), *_outcome(report, brief=False)]
        return [*lines, *outcome, *details, *word_blocks(report), *ending(closing, verbose)]
    return [*lines, *details, *_outcome(report, brief=True), *ending(closing, verbose)]


def _listed(report: Report, *, detailed: bool) -> list[Block]:
    """Return the sites in groups; ``detailed``: of what was done, too, and a table of all."""
    blocks: list[Block] = []
    for title, sites in zip(report.words(), (report.fused, report.kept), strict=True):
        if sites and (report.planned or detailed):
            blocks += titled(f"{title} ({len(sites)})", group_blocks(sites))
    return blocks + (site_blocks(report) if detailed else [])


def _facts(report: Report) -> list[Line]:
    opset = " -> ".join(dict.fromkeys((str(report.opset_before), str(report.opset_after))))
    nodes = plural(report.nodes_before, "node")
    if report.nodes_before != report.nodes_after:
        functions = f" + {plural(report.functions, 'function')}" if report.functions else ""
        nodes += f" -> {report.nodes_after:,}{functions}"
    target = f"target {report.target}" if report.target else "no target"
    return [
        f"  {report.source}: opset {opset}, {nodes}",
        f"  {target}, numerics {_numerics(report)}, {report.seconds:.2f} s",
    ]


def _numerics(report: Report) -> str:
    """Return the loosest class of the sites, and what was allowed."""
    used = [site.numerics for site in report.fused]
    if not used:
        return f"up to {report.numerics}"
    loosest = max(used, key=NUMERICS_ORDER.index)
    return loosest if loosest == report.numerics else f"{loosest} (allowed: {report.numerics})"


def _outcome(report: Report, *, brief: bool) -> list[Line]:
    """Return what holds for the model as a whole, each part after a blank line."""
    lines: list[Line] = []
    every = (report.fusions, report.quantized, report.precision)
    changes = [_change_lines(one, brief=brief) for one in every if one is not None]
    table = gain_table(report) if brief else None
    gain: list[Line] = []
    if table is not None:
        gain = [(text_of(one)[2:], style_of(one)) for one in table.lines()[1:]]
        gain.append("  time of a run: measured by bench")
    runners = _next_step(report) if brief else _runner_lines(report)
    for part in (*changes, proof_lines(report), gain, runners, note_lines(report.notes)):
        lines += ["", *part] if part else []
    return lines


def _change_lines(changed: Fusions | Quantization | Precision, *, brief: bool) -> list[Line]:
    """Return what was done beside the norms, how far the outputs are off, and what was left."""
    lines: list[Line] = [(one_line(changed.summary()), "bold")]
    if changed.compared:
        lines.append(f"  {one_line(changed.compared)}")
    if changed.not_compared:
        lines.append((f"  not compared: {one_line(changed.not_compared)}", "warn"))
    if isinstance(changed, Fusions):
        return lines + _unfused_lines(changed)
    if changed.problem:
        lines.append((f"  lost: {one_line(changed.problem)}", "bad"))
    if isinstance(changed, Precision):
        return lines + precision_lines(changed, brief=brief)
    lines += [f"  {one_line(changed.left_words())}"] if changed.left else []
    return lines + ([(f"  slow: {slow}", "warn")] if (slow := changed.slow_words()) else [])


def _unfused_lines(fusions: Fusions) -> list[Line]:
    """Return what transformers' fusions left, and why."""
    lines: list[Line] = []
    if fusions.left_out:
        lines.append((f"  omitted: {one_line(fusions.left_out)}", "warn"))
        lines.append(f"    {one_line(fusions.problem)}")
    for reason, layers in fusions.apart.items():
        what = f"attention of {plural(len(layers), 'layer')} {short(', '.join(layers), 60)}"
        lines.append((f"  not one node: {one_line(what)}: {one_line(reason)}", "warn"))
    if fusions.one_row:
        lines.append("  takes several tokens after a cache for one row alone")
    return lines


def undone_lines(reports: Iterable[Report]) -> list[Block]:
    """Return why nothing was fused that was asked for, each reason once."""
    every = (report.fusions.undone() for report in reports if report.fusions is not None)
    return [(one_line(text), "warn") for text in dict.fromkeys(every) if text]


def _next_step(report: Report) -> list[Line]:
    """Return what to do in the runtime at hand, and whether it runs the file."""
    entry, version = _runtime_here(report)
    norms = len(report.fused) + len(report.kept)
    if not report.runs_in or not norms:
        return []
    if entry is None:
        return [] if report.runtime else [("next: optimize --for RUNTIME", "bold")]
    name, asked = entry.runtime, (report.runtime or "").partition("@")[0]
    if asked not in ("", name):
        return []
    why = one_line(entry.reason or entry.unknown or f"it is older than {entry.since}")
    verb = "would run" if report.planned else "runs"
    known = f"{name} {version} {verb} it, by the table of runtimes"
    if entry.perhaps:
        known = f"it is not known whether {name} {version} runs it: {why}"
    elif not entry.since or Version(version) < Version(entry.since):
        known = f"{name} {version} does not run it: {why}"
    more = "-v: other runtimes" + ("" if report.planned else ", and the sites")
    lines: list[Line] = [f"  {known} ({more})"]
    if asked or entry.perhaps or (report.loading and report.loading.problem):
        return lines
    return [(f"next: {_advice(report, name, version, norms)}", "bold"), *lines]


def _runtime_here(report: Report) -> tuple[RunsIn | None, str]:
    """Return the first runtime of the table that is installed, and its version."""
    for entry in (entry for entry in report.runs_in if entry.runtime in BY_NAME):
        for package in (entry.runtime, *(p for p, e in ENGINES.items() if e == entry.runtime)):
            if version := version_of(package):
                return entry, version
    return None, ""


def _advice(report: Report, name: str, version: str, norms: int) -> str:
    """Return the one thing to do next: for a runtime, where its session has norms in pieces."""
    if report.planned and report.fused:
        return f"optimize --for {name}"
    is_best = report.target == BY_NAME[name][-1].target
    after = None if report.loading is None else report.loading.after
    if after is not None and after[1] < norms and not is_best:
        seen = f"of this file its session has {after[1]} of {norms} norms as one kernel"
        return f"optimize --for {name}: {seen}"
    return f"run it in {name} {version}"


def _site_notes(report: Report) -> list[Line]:
    """Return what there is to say of sites that are not listed, each once, with their number."""
    counts = Counter(note for site in (*report.fused, *report.kept) for note in site.notes)
    return [f"note: {plural(n, 'site')}: {one_line(note)}" for note, n in counts.items()]


def _runner_lines(report: Report) -> list[Line]:
    """Return who runs the file: a line of names, and one for each reason why others do not."""
    runners = []
    for entry in (entry for entry in report.runs_in if not entry.reason):
        words = " (not tried)" if entry.evidence == "read" else ""
        words = " (perhaps)" if entry.perhaps else words
        runners.append(f"{entry.runtime} {entry.since}+{words}")
    if not report.runs_in:
        return []
    lines: list[Line] = [f"  runs in, by the table of runtimes: {', '.join(runners) or 'none'}"]
    for field, before in (("reason", "not in "), ("unknown", "")):
        named: dict[str, list[str]] = {}
        for entry in report.runs_in:
            named.setdefault(getattr(entry, field), []).append(entry.runtime)
        texts = ((text, names) for text, names in named.items() if text)
        lines += [f"  {before}{', '.join(names)}: {one_line(text)}" for text, names in texts]
    return lines

"""A report as text for a person: one line that says it all, then groups.

Made for a model with 200 norms: sites, and refusals, that differ in nothing but their names are one
group. Lines are never cut (logs get grepped), and every string that comes from the model is escaped
first (``names.printable``).
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from rmsnorm_export.printable import collapse, family, number, one_line, plural, printable
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.rewrite.result import Report, Site

_FAMILIES = 4
"""Name families shown per group, and kinds of finding per refusal; a real model has one or two."""

_LABEL = re.compile(r"( +(\d+ x|[a-z]{3,5}) {2,3}| {13})(?=\S)")
"""What the continuation of a line hangs under: a count, a label, or the place below a label."""

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
    """``text`` in lines of ``width``, unless a single word is longer.

    They go on under what follows a label or a count, else a little to the right.
    """
    label = _LABEL.match(text)
    indent = " " * (label.end() if label else len(text) - len(text.lstrip()) + 4)
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
    lines += _about(report)
    sections = [("fusable" if planned else "fused", report.fused), ("kept as is", report.kept)]
    for title, sites in sections:
        if sites:
            lines += ["", (f"{title} ({len(sites)})", "bold")]
            lines += _site_list(sites) if verbose > 0 else _groups(sites)
    if refused := report.unfused:
        title = "cannot be fused" if planned else "were not fused"
        lines += ["", (f"refused ({len(refused)}): RMSNorms that {title}", "bold yellow")]
        lines += _refusals(refused, verbose=verbose)
    if alike := report.look_alikes:
        lines += ["", (f"look-alikes ({len(alike)}): no RMSNorms, left alone", "bold")]
        lines += _refusals(alike, verbose=verbose)
    proofs = proof_lines(report)
    if proofs:
        lines += ["", *proofs]
    if report.notes:
        lines += ["", *(f"note: {one_line(note)}" for note in report.notes)]
    if output:
        lines += ["", *output]
    return lines


def head(report: Report, *, planned: bool = False) -> Line:
    """The headline, green where no RMSNorm is left as it was."""
    done = report.fused or report.kept
    style = "bold green" if done and not report.unfused else "bold yellow"
    return (report.headline(planned=planned), style)


def _about(report: Report) -> list[Line]:
    opset = f"opset {report.opset_before}"
    if report.opset_after != report.opset_before:
        opset += f" -> {report.opset_after}"
    nodes = f"{report.nodes_before:,} nodes"
    if report.nodes_after != report.nodes_before:
        nodes += f" -> {report.nodes_after:,}"
        if report.functions:
            nodes += f" + {plural(report.functions, 'function')}"
    target = f"target {report.target}" if report.target else "no target"
    return [
        f"  {printable(report.source)}: {opset}, {nodes}",
        f"  {target}, numerics {report.numerics}, {report.seconds:.2f} s",
    ]


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
        lines += _names("nodes", map(_scoped, group))
        lines += _names("from", (str(site.module) for site in group if _module_says_more(site)))
        lines += [f"      note   {one_line(note)}" for note in group[0].notes]
    return lines


def _names(label: str, names: Iterable[str]) -> list[Line]:
    """The families of ``names``, one a line, the label in front of the first."""
    families = collapse(names)
    lines: list[Line] = [
        f"      {'' if i else label:5}  {name}" for i, name in enumerate(families[:_FAMILIES])
    ]
    if len(families) > _FAMILIES:
        lines.append(f"             and {len(families) - _FAMILIES} more kinds (-v lists all)")
    return lines


def _module_says_more(site: Site) -> bool:
    """Whether the PyTorch module is known and the node is not named after it."""
    return site.module is not None and site.module not in site.name


def _site_list(sites: Sequence[Site]) -> list[Line]:
    """Every site: its name, a line of facts, what it replaces and, where asked for, its proof."""
    facts = table([_columns(site) for site in sites])
    lines: list[Line] = []
    for fact, site in zip(facts, sites, strict=True):
        lines += [f"  {printable(_scoped(site))}", f"      {fact}"]
        if _module_says_more(site):
            lines.append(f"      from   {printable(str(site.module))}")
        if site.nodes:
            lines.append(f"      was    {printable(site.spelling)}")
            lines.append(f"             {', '.join(printable(node) for node in site.nodes)}")
        if site.proof is not None:
            lines.append(f"      proof  {_proof(site.proof)}")
        lines += [f"      note   {one_line(note)}" for note in site.notes]
    return lines


def _scoped(item: Site | Refusal) -> str:
    name = item.name if isinstance(item, Site) else item.node
    return name if item.scope == "main" else f"{name} in {item.scope}"


def _refusals(refused: Sequence[Refusal], *, verbose: int) -> list[Line]:
    """Refusals with the same reason as one group, the largest first.

    What was found and what to do are left out for look-alikes, where nothing is to be done, unless
    every one is listed.
    """
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refused:
        key = (refusal.reason, refusal.message, refusal.hint)
        groups.setdefault(key, []).append(refusal)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    width = len(str(len(ordered[0][1])))
    lines: list[Line] = []
    for (reason, message, hint), members in ordered:
        alike = members[0].kind == "look-alike"
        what = f"  {len(members):{width}} x  {printable(reason)}: {one_line(message)}"
        lines.append((what, "" if alike else "yellow"))
        if verbose > 0:
            lines += [
                f"      {printable(refusal.node)} [{printable(refusal.op)}]"
                f"{'' if refusal.scope == 'main' else f' in {printable(refusal.scope)}'}:"
                f" {one_line(refusal.found)}"
                for refusal in members
            ]
        elif alike:
            lines += _names("nodes", map(_scoped, members))
        else:
            lines += _findings(members)
        if hint and (verbose > 0 or not alike):
            lines.append(f"      {'hint' if alike else 'fix':5}  {one_line(hint)}")
    return lines


def _findings(members: Sequence[Refusal]) -> list[Line]:
    """What was found where; findings that differ in numbers only are one."""
    kinds: dict[tuple[str, ...], list[Refusal]] = {}
    for refusal in members:
        kinds.setdefault(family(one_line(refusal.found)), []).append(refusal)
    lines: list[Line] = []
    for kind in list(kinds.values())[:_FAMILIES]:
        lines += _names("nodes", map(_scoped, kind))
        lines += [f"      found  {text}" for text in collapse(one_line(r.found) for r in kind)]
    if len(kinds) > _FAMILIES:
        rest = len(kinds) - _FAMILIES
        lines.append(f"      and {rest} more kinds of finding (-v lists all)")
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
        f"  largest difference from the original: {_ulp(worst)}"
        + (f", at {printable(_scoped(site))}" if worst.max_ulp else ""),
        f"  largest error against float64:"
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
        f"{verdict}: {_ulp(proof)}, {proof.mismatch:.2%} of elements differ; error against"
        f" float64 {number(proof.error_before)} ulp before, {number(proof.error_after)} after"
    )


def _ulp(proof: Proof) -> str:
    return f"{number(proof.max_ulp)} ulp ({number(proof.bound_ulp)} allowed)"


def _rank(value: float) -> float:
    """Order for worst-of: what is not a number is worse than all."""
    return math.inf if math.isnan(value) else value


def _largest(values: Iterable[float]) -> float:
    return max(values, key=_rank)

"""The magnitudes that norms, sums and products survive in half precision; what runs show."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.health.result import KEEP, STORED, Health, HealthRun
from rmsnorm_export.printable import collapse, number, one_line, plural
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.refusals import scoped
from rmsnorm_export.show.text import Line, badness, grouped, titled


def health_lines(report: Report, *, verbose: int = 0) -> list[Line]:
    """Return sites with equal limits together, and how the model was run for them."""
    if not report.health_runs:
        return []
    failing = sum(one.fails for one in report.health)
    title = f"health: {failing} of {len(report.health)} norms, sums and products need a cure"
    if any(one.converted for one in report.health):
        title += " once the model is converted to float16"
    if odd := [run.odd for run in report.health_runs if run.computed == "in half precision"]:
        title += f"; {plural(odd[0], 'value')} of a run are NaN or infinite" if odd[0] else ""
    lines: list[Line] = []
    for group in grouped(report.health, lambda one: _what_holds(one) if verbose <= 0 else one):
        lines += _group_lines(group, verbose)
    return titled(title, [*lines, "", *(line for run in report.health_runs for line in _run(run))])


def _what_holds(one: Health) -> tuple[str, ...]:
    """Return the limits of a site that are known without a run, a line each."""
    if not one.is_norm:
        return (f"{one.kind}  {one.dtype}", one.cure)
    values = "addends" if one.kind == "residual sum" else "values"
    limit = f"safe for {values} up to {number(one.largest)}"
    if one.problem:
        limit = f"not known: {one_line(one.problem)}"
    elif one.node:
        limit += f"; beyond, its {one.op} overflows {one.computed}"
    if one.assumed:
        limit += f" (assumed to be 1, as it is not in the file: {', '.join(one.assumed)})"
    lines = [f"{one.kind}  {one.dtype}  {limit}"]
    if one.least:
        lines.append(
            f"  small    values below {number(one.least)} give NaN, infinities or other numbers"
        )
    if one.epsilon is not None and not one.problem:
        kind = ", a subnormal number, which some devices take for 0" if one.subnormal else ""
        kind = ", which vanishes in the type" if one.epsilon == 0 else kind
        lines.append(f"  epsilon  {number(one.epsilon)}{kind}")
    return (*lines, one.cure)


def _group_lines(group: Sequence[Health], verbose: int) -> list[Line]:
    first, *details, cure = _what_holds(group[0])
    style = "bad" if any(one.beyond for one in group) else "warn" if group[0].fails else ""
    sizes = [one.measured for one in group if one.measured is not None]
    if sizes and not group[0].is_norm:
        first += f"  results up to {number(max(sizes, key=badness))} measured"
    elif sizes:
        details.append(f"  measured {number(max(sizes, key=badness))} at most")
    if cure:
        keep = ", ".join(collapse(name for one in group for name in one.keep))
        kept = f"keep {keep} in float32" if keep else ""
        both = [*([] if cure == KEEP else [cure]), *([kept] if kept else [])]
        details.append(f"  cure     {(', and ' if cure == STORED else ', or ').join(both)}")
    lines: list[Line] = [(f"  {len(group)} x  {first}", style)]
    if group[0].is_norm or style or verbose > 0:
        sites = collapse(scoped(one.module or one.site, one.scope) for one in group)
        lines.append(f"      sites    {', '.join(sites)}")
    return [*lines, *(f"    {detail}" for detail in details)]


def _run(run: HealthRun) -> list[Line]:
    """Return how the model was run, and where values stop being numbers of float16."""
    how = one_line(f"{run.computed}, inputs: {run.inputs}")
    if run.problem:
        return [(f"  {how}: not run, {one_line(run.problem)}", "warn")]
    if not run.odd:
        off = "" if run.off is None else f"; outputs are off by {number(run.off)} of their largest"
        return [f"  {how}: none of {plural(run.values, 'value')} overflows or is NaN{off}"]
    what = "beyond float16 or NaN" if run.computed == "in float32" else "infinite or NaN"
    lines: list[Line] = [f"  {how}: {run.odd} of {plural(run.values, 'value')} {what}"]
    module = f", module {run.module}" if run.module else ""
    first = f"{run.tensor} reaches {number(run.size)}: {run.op} {run.node}{module}"
    first += f", from {run.constant}, which float16 does not hold" if run.constant else ""
    lines.append((f"    the first: {one_line(first, 4000)}", "bad"))
    cure = "keep in float32 what is named above" if run.cure == KEEP else run.cure
    return [*lines, *([f"    cure: {one_line(cure, 4000)}"] if cure else [])]

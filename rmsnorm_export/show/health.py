"""The magnitudes that norms and residual sums survive in half precision; the first overflow."""

from __future__ import annotations

from rmsnorm_export.health.result import KEEP, Health, HealthRun
from rmsnorm_export.printable import collapse, number, one_line, plural
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.refusals import scoped
from rmsnorm_export.show.text import Line, badness, grouped, titled


def health_lines(report: Report, *, verbose: int = 0) -> list[Line]:
    """Return sites with equal limits together, and how the model was run for them."""
    if not report.health_runs:
        return []
    failing = sum(one.fails for one in report.health)
    title = f"health: {failing} of {len(report.health)} norms and residual sums need a cure"
    if any(one.converted for one in report.health):
        title += " once the model is converted to float16"
    lines: list[Line] = []
    for group in grouped(report.health, lambda one: _what_holds(one) if verbose <= 0 else one):
        lines += _group_lines(group)
    lines += ["", *(line for run in report.health_runs for line in _run_lines(run))]
    sites = {one.site for one in report.health}
    if unseen := [refusal for refusal in report.unfused if refusal.node not in sites]:
        lines.append(f"  not examined: {plural(len(unseen), 'refused norm')}")
    return titled(title, lines)


def _what_holds(one: Health) -> tuple[str, ...]:
    """Return the limits of a site that are known without a run, a line each."""
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
        above = f"; it changes nothing above {number(one.unchanged or 0.0)}"
        lines.append(f"  epsilon  {number(one.epsilon)}{kind}{above if one.epsilon else ''}")
    return (*lines, one.cure)


def _group_lines(group: list[Health]) -> list[Line]:
    first, *details, cure = _what_holds(group[0])
    style = "bad" if any(one.beyond for one in group) else "warn" if group[0].fails else ""
    sizes = [one.measured for one in group if one.measured is not None]
    if sizes:
        details.append(f"  measured {number(max(sizes, key=badness))} at most")
    if cure:
        keep = ", ".join(collapse(name for one in group for name in one.keep))
        kept = f"keep {keep} in float32" if keep else ""
        cures = (kept,) if cure == KEEP else (cure, kept)
        details.append(f"  cure     {', or '.join(filter(None, cures))}")
    sites = ", ".join(collapse(scoped(one.module or one.site, one.scope) for one in group))
    lines: list[Line] = [(f"  {len(group)} x  {first}", style), f"      sites    {sites}"]
    return [*lines, *(f"    {detail}" for detail in details)]


def _run_lines(run: HealthRun) -> list[Line]:
    """Return how the model was run, and the first overflow."""
    how = one_line(f"{run.computed}, inputs: {run.inputs}")
    if run.problem:
        return [(f"  {how}: not run, {one_line(run.problem)}", "warn")]
    how = f"  {how}, {plural(run.values, 'value')} on {run.runtime}"
    if not run.tensor:
        return [f"{how}: none overflows"]
    module = f", module {run.module}" if run.module else ""
    where = f"{run.op} {run.node}{module}, at or after {run.site or 'no norm'}"
    first = f"{run.tensor} reaches {number(run.size)}, no float16: {where}"
    first += f"; cure: {run.cure}" if run.cure else ""
    return [how, (f"    first overflow: {one_line(first, 4000)}", "bad")]

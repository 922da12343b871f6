"""What norms and residual sums survive in half precision, and where a run overflows first."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_export.printable import collapse, number, one_line, plural
from rmsnorm_export.rewrite.health import Health, HealthRun
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.refusals import scoped
from rmsnorm_export.show.text import Block, Line, Table, badness, grouped

_OF_ONE = ("site", "module", "scope", "node", "measured", "keep", "converted")
_SAID = [field.name for field in dataclasses.fields(Health) if field.name not in _OF_ONE]
"""Fields of which sites in one row have the same."""


def health_blocks(report: Report, *, verbose: int = 0) -> list[Block]:
    """Return a table of sites of which the same is said, its heads those of ``Health``; and the
    runs."""
    if not report.health_runs:
        return []
    rows, styles = [], []
    for group in grouped(report.health, lambda one: _said(one) if verbose <= 0 else one):
        sizes = (math.nan if one.measured is None else one.measured for one in group)
        sites = (scoped(one.module or one.site, one.scope) for one in group)
        keep = collapse(name for one in group for name in one.keep)
        seen = number(max(sizes, key=badness))
        rows.append([*_said(group[0]), seen, ", ".join(collapse(sites)), ", ".join(keep)])
        styles.append("bad" if any(one.beyond for one in group) else "")
    failing = sum(bool(one.cure) for one in report.health)
    title = (
        f"health: {failing} of {plural(len(report.health), 'norm and residual sum')} need a cure"
    )
    if any(one.converted for one in report.health):
        title += " once the model is converted to float16"
    lines = [line for run in report.health_runs for line in _run_lines(run)]
    if report.unfused:
        lines.append(f"  not told of {plural(len(report.unfused), 'refused norm')}")
    return [Table(title, [*_SAID, "measured", "sites", "keep"], rows, styles=styles), "", *lines]


def _said(one: Health) -> tuple[str, ...]:
    return tuple(_cell(getattr(one, name)) for name in _SAID)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return one_line(str(value)) if value else ""


def _run_lines(run: HealthRun) -> list[Line]:
    """Return how the model was run, and the first overflow."""
    how = one_line(f"{run.computed}, inputs: {run.inputs}")
    if run.problem:
        return [(f"  {how}: not run, {one_line(run.problem)}", "warn")]
    how = f"  {how}, {plural(run.values, 'value')} on {run.runtime}"
    if not run.tensor:
        return [f"{how}: none overflows"]
    module = f", module {run.module}" if run.module else ""
    where = f"{run.op} {run.node}{module}, at or behind {run.site or 'no norm'}"
    first = f"{run.tensor} reaches {number(run.size)}, no float16: {where}; cure: {run.cure}"
    return [how, (f"    first overflow: {one_line(first, 4000)}", "bad")]

"""The nodes that stay as they were, and why: norms, their neighbours, look-alikes."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import collapse, family, one_line
from rmsnorm_export.recognize.refusal import Refusal, RefusalKind
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.text import FAMILIES, Block, Line, Table, grouped, name_lines, titled

_APART: dict[RefusalKind, tuple[str, str]] = {
    "residual": ("residuals", "before a norm"),
    "quantizer": ("quantizers", "after a norm"),
    "rotary": ("rotary embeddings", "after a norm"),
}
"""The neighbours that are not in the node of a norm, and their place."""


def refusal_blocks(report: Report, *, detailed: bool) -> list[Block]:
    """Return a title and a group for each reason of each kind; ``detailed``: a row for each."""
    unfused = "cannot be fused" if report.planned else "were not fused"
    kinds = [
        ("refused", f"RMSNorms that {unfused}", report.unfused),
        *(
            (what, f"nodes {where} that are not in its node", report.apart(kind))
            for kind, (what, where) in _APART.items()
        ),
        ("look-alikes", "no RMSNorms, left alone", report.look_alikes),
    ]
    blocks: list[Block] = []
    for what, meaning, refused in kinds:
        groups = grouped(refused, lambda one: (one.reason, one.message, one.hint))
        width = len(str(max(map(len, groups), default=0)))
        shown = [line for group in groups for line in _group_lines(group, width, detailed)]
        if detailed and refused:
            shown.append(_refused_table(refused))
        blocks += titled(f"{what} ({len(refused)}): {meaning}", shown)
    return blocks


def _group_lines(members: Sequence[Refusal], width: int, detailed: bool) -> list[Block]:
    """Return the lines of refusals with one reason.

    What was found and what to do are omitted for look-alikes, where nothing is to be done.
    """
    first = members[0]
    alike = first.kind == "look-alike"
    reason = f"  {len(members):{width}} x  {first.reason}: {one_line(first.message)}"
    lines: list[Block] = [(reason, "warn" if first.kind == "norm" else "")]
    names = (scoped(one.node, one.scope) for one in members)
    lines += name_lines(names) if alike else _findings(members)
    if first.hint and (detailed or not alike):
        lines.append(f"      {'hint' if alike else 'fix':5}  {one_line(first.hint)}")
    return lines


def _refused_table(refused: Sequence[Refusal]) -> Table:
    heads = ("node", "operator", "in", "reason", "found")
    rows = [(r.node, r.op, r.scope, r.reason, one_line(r.found, 600)) for r in refused]
    return Table("every node", heads, rows, folded=True)


def scoped(name: str, scope: str) -> str:
    """Return a name, and the function or subgraph that holds it."""
    return name if scope == "main" else f"{name} in {scope}"


def _findings(members: Sequence[Refusal]) -> list[Line]:
    """Return what was found where; findings that differ in numbers only are one."""
    kinds = grouped(members, lambda one: family(one_line(one.found)))
    lines: list[Line] = []
    for kind in kinds[:FAMILIES]:
        lines += name_lines(scoped(refusal.node, refusal.scope) for refusal in kind)
        lines += [f"      found  {text}" for text in collapse(one_line(r.found) for r in kind)]
    if len(kinds) > FAMILIES:
        rest = len(kinds) - FAMILIES
        lines.append(f"      and {rest} more kinds of finding (-v lists all)")
    return lines

"""The lines of a conversion to half precision: what stayed float32, and why."""

from __future__ import annotations

from rmsnorm_export.precision.result import Kept, Precision
from rmsnorm_export.printable import number, one_line, plural, short
from rmsnorm_export.show.text import Line, grouped

_KEPT_FOR = {
    "range": "of a magnitude that the type does not hold",
    "rule": "by rule",
    "type": "without a half form",
    "between": "between such nodes",
}
_LISTED = 6
"""Lines of one reason in a brief report."""


def precision_lines(precision: Precision, *, brief: bool) -> list[Line]:
    """Return the magnitudes that decided, and the nodes that stayed float32.

    Args:
        precision: the conversion.
        brief: without the names of all nodes.
    """
    runs = plural(precision.runs, "run")
    lines: list[Line] = [
        f"  magnitudes: {precision.margin:g} times those of {runs} in float32"
        f" ({one_line(precision.inputs)}); {precision.dtype} ends at {number(precision.limit)}"
    ]
    for kind, words in _KEPT_FOR.items():
        kept = [one for one in precision.kept if one.kind == kind]
        if kept:
            lines.append(f"  float32 {words}: {plural(len(kept), 'node')}")
            groups = grouped(kept, lambda one: one.reason)
            rows = [_reason_line(group, brief=brief) for group in groups]
            most = _LISTED if brief else len(rows)
            lines += rows[:most]
            lines += [f"    {len(rows) - most} more (-v)"] if len(rows) > most else []
    if precision.other:
        nodes = plural(precision.other_kept, "node")
        lines.append(f"  as {one_line(precision.other)} {nodes} would stay float32")
    return lines


def _reason_line(kept: list[Kept], *, brief: bool) -> str:
    """Return a reason, and the nodes that stayed float32 for it."""
    names = ", ".join(f"{one.op} {one.node}" for one in kept)
    layer = next((one.module for one in kept if one.module), None)
    where = f" ({one_line(layer)})" if layer and layer not in names else ""
    return f"    {one_line(kept[0].reason)}: {short(one_line(names), 80 if brief else 400)}{where}"

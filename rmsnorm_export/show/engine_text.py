"""A build as text for a person; strings of the model are made printable."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import collapse, one_line, printable
from rmsnorm_export.show.report_text import Line, table
from rmsnorm_export.tensorrt.engine.backends import BACKENDS
from rmsnorm_export.tensorrt.engine.result import EngineNorm, EngineRecord, EngineResult, InputRange

_FAMILIES = 4
"""Families of names shown per group."""

_STYLES = {"unfused": "yellow", "unknown": "yellow"}


def engine_lines(result: EngineResult, *, verbose: int = 0) -> list[Line]:
    """The lines of a build.

    Args:
        result: of ``build_engine``.
        verbose: 1 or more names every kernel; -1 or less keeps the first line only.
    """
    record = result.record
    lines: list[Line] = [_head(record)]
    if verbose < 0:
        return lines
    lines += [
        f"  {printable(record.model.name)} -> {printable(str(result.path))}"
        f" ({record.bytes:,} bytes)",
        f"  {BACKENDS[record.backend].label} {printable(record.version)},"
        f" {', '.join(map(printable, record.gpus)) or 'no GPU'}, {record.seconds:.1f} s",
    ]
    for number, profile in enumerate(record.profiles, 1):
        title = "profile" if len(record.profiles) == 1 else f"profile {number}"
        lines += [f"  {title}  {_range(item)}" for item in profile.inputs]
    if record.norms:
        lines += ["", (f"norms ({len(record.norms)})", "bold")]
        lines += _groups(record.norms, verbose=verbose)
    if record.messages:
        lines += ["", (f"warnings of {BACKENDS[record.backend].label}", "bold")]
        for message in record.messages:
            times = f"{message.count} x  " if message.count > 1 else ""
            lines.append(f"  {message.stage} [{message.kind}]  {times}{one_line(message.text)}")
    lines += ["", *(f"note: {one_line(note)}" for note in record.notes)]
    lines.append(f"wrote {printable(str(result.path))}")
    lines.append(f"  and its record {printable(result.sidecar.name)}")
    return lines


def _head(record: EngineRecord) -> Line:
    norms = record.norms
    good = sum(norm.how in ("fused", "plugin") for norm in norms)
    if not norms:
        return ("engine built; the model has no RMSNorm", "bold yellow")
    parts = []
    for how in ("plugin", "fused", "unfused", "unknown"):
        count = sum(norm.how == how for norm in norms)
        if count:
            parts.append(f"{count} {how}")
    style = "bold green" if good == len(norms) else "bold yellow"
    total = f"{len(norms)} RMSNorm{'' if len(norms) == 1 else 's'}"
    return (f"engine built: {good} of {total} in one kernel each: {', '.join(parts)}", style)


def _range(item: InputRange) -> str:
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in (item.min, item.opt, item.max)]
    text = shapes[0] if len(set(shapes)) == 1 else " / ".join(shapes)
    return f"{printable(item.name)} {item.dtype} {text}"


def _groups(norms: Sequence[EngineNorm], *, verbose: int) -> list[Line]:
    """Norms with the same fate as one group."""
    groups: dict[tuple[object, ...], list[EngineNorm]] = {}
    for norm in norms:
        key = (norm.op, norm.form, norm.how, norm.kernels, _residual(norm), norm.reason)
        groups.setdefault(key, []).append(norm)
    members = sorted(groups.values(), key=len, reverse=True)
    rows = table([_columns(group) for group in members], right=(0,))
    lines: list[Line] = []
    for row, group in zip(rows, members, strict=True):
        lines.append((f"  {row}", _STYLES.get(group[0].how, "")))
        if verbose > 0:
            for norm in group:
                lines.append(f"      {printable(norm.name)}")
                lines += [f"          {printable(name)}" for name in norm.names]
            continue
        families = collapse(norm.name for norm in group)
        for i, name in enumerate(families[:_FAMILIES]):
            lines.append(f"      {'' if i else 'nodes':5}  {name}")
        if len(families) > _FAMILIES:
            lines.append(f"             and {len(families) - _FAMILIES} more kinds (-v lists all)")
    return lines


def _columns(group: Sequence[EngineNorm]) -> list[str]:
    norm = group[0]
    count = "" if norm.kernels is None else f"{norm.kernels} kernel{'s' * (norm.kernels != 1)}"
    return [f"{len(group)} x", norm.op, norm.form, norm.how, count or norm.reason, _residual(norm)]


def _residual(norm: EngineNorm) -> str:
    """Where the residual sum is computed."""
    if not norm.residual:
        return ""
    return "sum in it" if norm.residual in norm.names else "sum in the kernel before"

"""An engine: what was built and became of every norm in it, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.show.page import Table
from rmsnorm_export.show.text import (
    Line,
    Verdict,
    grouped,
    headline,
    name_lines,
    note_lines,
    table,
)
from rmsnorm_export.tensorrt.engine.backends import BACKENDS
from rmsnorm_export.tensorrt.engine.result import (
    EngineNorm,
    EngineRecord,
    EngineResult,
    InputRange,
)

_NORM_STYLES = {"unfused": "yellow", "unknown": "yellow"}
_NORM_HEADS = ("Norm", "Operator", "Computed by", "Kernels", "Names")
_KERNELS = 4
"""Kernels of a norm that are named on a page."""


def _engine_verdict(record: EngineRecord) -> Verdict:
    norms = record.norms
    if not norms:
        return "engine built; the model has no RMSNorm", "warn"
    counts = dict.fromkeys(("plugin", "fused", "unfused", "unknown"), 0)
    for norm in norms:
        counts[norm.how] += 1
    good = counts["plugin"] + counts["fused"]
    parts = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    text = f"engine built: {good} of {plural(len(norms), 'RMSNorm')} in one kernel each: {parts}"
    return text, "good" if good == len(norms) else "warn"


def _builder(record: EngineRecord) -> str:
    return f"{BACKENDS[record.backend].label} {printable(record.version)}"


def _range_text(item: InputRange) -> str:
    """An input with its smallest, usual and largest shape; one where they are equal."""
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in (item.min, item.opt, item.max)]
    text = shapes[0] if len(set(shapes)) == 1 else " / ".join(shapes)
    return f"{printable(item.name)} {item.dtype} {text}"


def engine_lines(result: EngineResult, *, verbose: int = 0) -> list[Line]:
    """The lines of a build; with ``verbose`` above 0 every kernel is named."""
    record = result.record
    lines: list[Line] = [headline(_engine_verdict(record))]
    if verbose < 0:
        return lines
    path = printable(str(result.path))
    gpus = ", ".join(map(printable, record.gpus)) or "no GPU"
    lines += [
        f"  {printable(record.model)} -> {path} ({record.bytes:,} bytes)",
        f"  {_builder(record)}, {gpus}, {record.seconds:.1f} s",
    ]
    for number, profile in enumerate(record.profiles, 1):
        title = "profile" if len(record.profiles) == 1 else f"profile {number}"
        lines += [f"  {title}  {_range_text(item)}" for item in profile.inputs]
    if record.norms:
        lines += ["", (f"norms ({len(record.norms)})", "bold")]
        lines += _norm_lines(record.norms, verbose=verbose)
    if record.messages:
        lines += ["", (f"warnings of {BACKENDS[record.backend].label}", "bold")]
        lines += [f"  {one_line(message)}" for message in record.messages]
    lines += ["", *note_lines(record.notes), f"wrote {path}"]
    lines.append(f"  and its record {printable(result.sidecar.name)}")
    return lines


def _norm_lines(norms: Sequence[EngineNorm], *, verbose: int) -> list[Line]:
    """Norms with the same fate as one group."""
    groups = grouped(norms, lambda n: (n.op, n.form, n.how, n.kernels, n.reason))
    rows = table([_norm_texts(group) for group in groups], right=(0,))
    lines: list[Line] = []
    for row, group in zip(rows, groups, strict=True):
        lines.append((row, _NORM_STYLES.get(group[0].how, "")))
        if verbose > 0:
            for norm in group:
                lines.append(f"      {printable(norm.name)}")
                lines += [f"          {printable(name)}" for name in norm.names]
        else:
            lines += name_lines(norm.name for norm in group)
    return lines


def _norm_texts(group: Sequence[EngineNorm]) -> list[str]:
    norm = group[0]
    count = norm.reason if norm.kernels is None else plural(norm.kernels, "kernel")
    return [f"{len(group)} x", norm.op, norm.form, norm.how, count]


def engine_tables(result: EngineResult) -> list[Table]:
    """Return a row for each norm of an engine."""
    return record_tables(result.record)


def record_lines(record: EngineRecord, *, verbose: int = 0) -> list[Line]:
    """Return the lines of an engine's record."""
    lines: list[Line] = [headline(_engine_verdict(record))]
    return lines if verbose < 0 else [*lines, *_norm_lines(record.norms, verbose=verbose)]


def record_tables(record: EngineRecord) -> list[Table]:
    """Return a row for each norm of an engine."""
    rows = [
        (
            norm.name,
            norm.op,
            norm.how,
            "" if norm.kernels is None else str(norm.kernels),
            one_line(norm.reason) or ", ".join(norm.names[:_KERNELS]),
        )
        for norm in record.norms
    ]
    return [Table("Norms in the engine", _NORM_HEADS, rows, numbers=("Kernels",), names=("Norm",))]

"""An engine: what was built and became of every norm in it, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.printable import collapse, one_line, plural
from rmsnorm_export.show.text import FAMILIES, Block, Line, Table, grouped, note_lines, titled
from rmsnorm_export.tensorrt.engine.backends import BACKENDS
from rmsnorm_export.tensorrt.engine.result import EngineNorm, EngineRecord, EngineResult

_NORM_STYLES = {"unfused": "warn", "unknown": "warn"}


def engine_result_blocks(result: EngineResult, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a build; with ``verbose`` above 0 every norm and kernel is named."""
    record = result.record
    lines: list[Block] = [_engine_verdict(record)]
    if verbose < 0:
        return lines
    gpus, label = ", ".join(record.gpus) or "no GPU", BACKENDS[record.backend].label
    lines += [
        f"  {record.model} -> {result.path} ({record.bytes:,} bytes)",
        f"  {label} {record.version}, {gpus}, {record.seconds:.1f} s",
    ]
    lines.append(_norms_table(record.norms, verbose=verbose))
    messages = [f"  {one_line(message)}" for message in record.messages]
    lines += titled(f"warnings of {label}", messages)
    lines += ["", *note_lines(record.notes), f"wrote {result.path}"]
    return [*lines, f"  and its record {result.sidecar.name}"]


def engine_record_blocks(record: EngineRecord, *, verbose: int = 0) -> list[Block]:
    """Return the lines of an engine's record."""
    lines: list[Block] = [_engine_verdict(record)]
    table = _norms_table(record.norms, verbose=verbose)
    return lines if verbose < 0 else [*lines, table, *note_lines(record.notes)]


def _engine_verdict(record: EngineRecord) -> Line:
    norms = record.norms
    if not norms:
        return "engine built; no RMSNorm was recognised in the model", "warn"
    counts = dict.fromkeys(("plugin", "fused", "unfused", "unknown"), 0)
    for norm in norms:
        counts[norm.how] += 1
    good = counts["plugin"] + counts["fused"]
    parts = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    text = f"engine built: {good} of {plural(len(norms), 'RMSNorm')} in one kernel each: {parts}"
    return text, "good" if good == len(norms) else "warn"


def _norms_table(norms: Sequence[EngineNorm], *, verbose: int) -> Table:
    """Return norms with the same fate as one row; with ``verbose`` above 0 each has its own."""
    groups = [[norm] for norm in norms]
    if verbose <= 0:
        groups = grouped(norms, lambda n: (n.op, n.form, n.how, n.kernels, n.reason))
    heads = ["norms", "operator", "form", "how", "kernels", "names"]
    rows = [
        [
            f"{len(group)} x",
            group[0].op,
            group[0].form,
            group[0].how,
            one_line(group[0].reason) if group[0].kernels is None else str(group[0].kernels),
            _families(group),
            *([", ".join(group[0].names)] if verbose > 0 else []),
        ]
        for group in groups
    ]
    heads += ["computed by"] if verbose > 0 else []
    styles = [_NORM_STYLES.get(group[0].how, "") for group in groups]
    return Table(f"norms ({len(norms)})", heads, rows, numbers=("norms",), styles=styles)


def _families(group: Sequence[EngineNorm]) -> str:
    families = collapse(norm.name for norm in group)
    rest = f" and {len(families) - FAMILIES} more kinds" if len(families) > FAMILIES else ""
    return ", ".join(families[:FAMILIES]) + rest

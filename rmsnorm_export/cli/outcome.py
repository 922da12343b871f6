"""What the commands that write a model have in common: ``--require``, the file, how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console

if TYPE_CHECKING:
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.graph.external import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.rewrite.optimize import Result
    from rmsnorm_export.rewrite.result import Report

_PROOF_FAILED = "proof-failed"
"""Reason of the refusals that stand for sites whose proof failed."""

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "link": "weights: hard links to the external files of the source",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}


def require_value(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    """A positive number or ``all``."""
    if value is None or value == "all":
        return value
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) == 0:
        raise click.BadParameter(f"{value!r} is neither a number from 1 nor 'all'")
    return int(value)


def write_model(
    result: Result, output: str, weights: WeightsPolicy, force: bool
) -> SaveResult | dict[str, object]:
    """Save the model, or write it to stdout; what the report says of it."""
    if output != console.STDIO:
        return result.save(output, weights=weights, force=force)
    from rmsnorm_export.graph.save import to_bytes

    data = to_bytes(result.model, weights=weights)
    console.write_stdout(data)
    return {"path": console.STDIO, "bytes": len(data)}


def unmet(report: Report, require: int | str | None) -> Failure | None:
    """The error of ``--require``; None when it is met or was not given."""
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.errors import ExitCode

    done, refused = len(report.fused) + len(report.kept), report.unfused
    if require is None or (done > 0 and not refused if require == "all" else done >= int(require)):
        return None
    found = f"{done} norms are one node, {len(refused)} refused"
    if refused:
        found += f" ({', '.join(dict.fromkeys(refusal.reason for refusal in refused))})"
    if alike := report.look_alikes:
        found += f"; {len(alike)} look-alikes, which are no RMSNorm, left alone"
    return Failure(
        f"--require {require} is not met; nothing was written.",
        found,
        "see the hints of the refusals in the report, or lower --require"
        if refused
        else "check that this is the right model, or leave --require away",
        ExitCode.REQUIREMENT,
    )


def failed_proofs(report: Report) -> Failure | None:
    """The error of ``--prove``; None when every proof holds or none was asked for."""
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.errors import ExitCode

    failed = [refusal for refusal in report.refused if refusal.reason == _PROOF_FAILED]
    if not failed:
        return None
    first = failed[0]
    return Failure(
        f"{len(failed)} proofs failed; the output was written with the original nodes there.",
        f"{first.node}: {first.found}",
        "see the refusals in the report; the output computes what the source computes",
        ExitCode.VERIFICATION,
    )


def outcome_lines(written: SaveResult | dict[str, object] | None) -> list[str]:
    """Where the output went, and what became of the weights."""
    from rmsnorm_export.printable import one_line, printable

    if written is None:
        return ["nothing was written"]
    if isinstance(written, dict):
        return [f"wrote {size_text(int(str(written['bytes'])))} to stdout"]
    lines = [f"wrote {printable(str(written.path))} ({size_text(written.bytes)})"]
    if written.weights != "none":
        lines.append(f"  {_WEIGHTS[written.weights]}")
    lines += [f"  wrote {printable(str(path))}" for path in written.data_files]
    return lines + [f"  note: {one_line(note)}" for note in written.notes]


def size_text(count: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"

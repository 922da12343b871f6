"""``optimize``: every RMSNorm of a model becomes one node."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console, html_file
from rmsnorm_export.cli.options import (
    TARGETS,
    State,
    format_option,
    logging_options,
    numerics_option,
    seed_option,
)

if TYPE_CHECKING:
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.report.result import Numerics, Report, Target
    from rmsnorm_export.rewrite.external import WeightsPolicy
    from rmsnorm_export.rewrite.optimize import Result
    from rmsnorm_export.rewrite.save import SaveResult


def _require(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    """A positive number or ``all``."""
    if value is None or value == "all":
        return value
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) == 0:
        raise click.BadParameter(f"{value!r} is neither a number from 1 nor 'all'")
    return int(value)


_PROOF_FAILED = "proof-failed"
"""Reason of the refusals that stand for sites whose proof failed."""

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "link": "weights: hard links to the external files of the source",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}


@click.command("optimize", short_help="Make every RMSNorm of a model one node.")
@click.argument("model")
@click.option(
    "-o", "--output", required=True, metavar="OUT", help="File to write, or - for stdout."
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default="portable",
    show_default=True,
    help="portable: our operator with its definition in the file, runs everywhere; onnx: "
    "RMSNormalization of opset 23; ort: the fused operators of ONNX Runtime.",
)
@numerics_option
@click.option(
    "--opset",
    type=click.IntRange(min=1),
    metavar="N",
    help="Raise the model to this opset; without it, only as far as the target needs.",
)
@click.option(
    "--no-fold-residual",
    is_flag=True,
    help="Leave the Add in front of a norm a node of its own, where the target could take it in.",
)
@click.option(
    "--no-fold-gate",
    is_flag=True,
    help="Leave the SiLU or sigmoid gate of a norm as it is, where the target could take it in.",
)
@click.option(
    "--require",
    metavar="N|all",
    callback=_require,
    help="Fail with exit code 5, and write nothing, unless N norms are one node; all: unless there "
    "is a norm and none was refused (look-alikes do not count).",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Run every site before and after on hard inputs. A site that fails keeps its nodes, the "
    "output is written, and the exit code is 4.",
)
@click.option(
    "--weights",
    type=click.Choice(("auto", "reference", "link", "copy", "embed")),
    default="auto",
    show_default=True,
    help="What happens to weights in external files.",
)
@click.option("--force", is_flag=True, help="Replace existing files of -o, --report, --html.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to FILE too: as JSON if it ends in .json, else as text.",
)
@html_file.option
@seed_option("Of the inputs of --prove.")
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    model: str,
    output: str,
    target: Target,
    numerics: Numerics,
    opset: int | None,
    no_fold_residual: bool,
    no_fold_gate: bool,
    require: int | str | None,
    prove: bool,
    weights: WeightsPolicy,
    force: bool,
    report_path: Path | None,
    html_path: Path | None,
    seed: int,
) -> None:
    """Make every RMSNorm of MODEL one node and write the result to OUT.

    MODEL is an ONNX file, or - for stdin. It is never changed.

    \b
    Example:
      rmsnorm-export optimize model.onnx -o fused.onnx --require all --prove
    """
    state = context.ensure_object(State)
    state.model_on_stdout = output == console.STDIO
    with console.logging_to_stderr(state):
        import rmsnorm_export
        from rmsnorm_export.cli import report_file
        from rmsnorm_export.cli.failure import ReportedError
        from rmsnorm_export.cli.source import model_source, source_name
        from rmsnorm_export.report.json import to_json
        from rmsnorm_export.report.text import render, report_lines
        from rmsnorm_export.rewrite.save import check_output

        if report_path is not None:
            report_file.check(report_path, force=force, taken=(model, output))
        html_file.check(html_path, force=force, taken=(model, output, report_path))
        if state.model_on_stdout:
            console.refuse_terminal()
        else:
            check_output(output, source=model if model != console.STDIO else None, force=force)
        source = model_source(model)
        with console.progress(state, "Optimizing") as step:
            result = rmsnorm_export.optimize(
                source,
                target=target,
                numerics=numerics,
                opset=opset,
                fold_residual=not no_fold_residual,
                fold_gate=not no_fold_gate,
                prove=prove,
                seed=seed,
                progress=step,
                drawings=html_path is not None,
            )
        report = dataclasses.replace(result.report, source=source_name(model, result.report.source))
        failure = _unmet(report, require)
        written: SaveResult | dict[str, object] | None = None
        if failure is None:
            with console.progress(state, "Writing"):
                written = _write(result, output, weights, force)
            failure = _failed_proofs(report)
        extra = {"output": written} | ({"error": failure.as_dict()} if failure else {})
        outcome = _outcome(written)
        lines = report_lines(report, verbose=state.verbosity, output=outcome)
        if report_path is not None:
            as_json = report_path.suffix == ".json"
            text = to_json(report, extra=extra) if as_json else render(lines)
            report_file.write(report_path, text, force=force)
        said = ("Output", "; ".join(line.strip() for line in outcome))
        facts = [*html_file.file_size(model), said]
        html_file.write(html_path, report, force=force, facts=facts, failure=failure)
        if state.json:
            console.show_json(state, report, extra)
        else:
            console.show(state, lines)
    if failure is not None:
        raise ReportedError(failure)


def _write(
    result: Result, output: str, weights: WeightsPolicy, force: bool
) -> SaveResult | dict[str, object]:
    """Save the model, or write it to stdout; what the report says of it."""
    if output != console.STDIO:
        return result.save(output, weights=weights, force=force)
    from rmsnorm_export.rewrite.save import to_bytes

    data = to_bytes(result.model, weights=weights)
    console.write_stdout(data)
    return {"path": console.STDIO, "bytes": len(data)}


def _unmet(report: Report, require: int | str | None) -> Failure | None:
    """The error of ``--require``; None when it is met or was not given."""
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.errors import ExitCode
    from rmsnorm_export.report.text import look_alikes, norms

    done, refused = len(report.fused) + len(report.kept), norms(report.refused)
    if require is None or (done > 0 and not refused if require == "all" else done >= int(require)):
        return None
    found = f"{done} norms are one node, {len(refused)} refused"
    if refused:
        found += f" ({', '.join(dict.fromkeys(refusal.reason for refusal in refused))})"
    if alike := look_alikes(report.refused):
        found += f"; {len(alike)} look-alikes, which are no RMSNorm, left alone"
    return Failure(
        f"--require {require} is not met; nothing was written.",
        found,
        "see the hints of the refusals in the report, or lower --require"
        if refused
        else "check that this is the right model, or leave --require away",
        ExitCode.REQUIREMENT,
    )


def _failed_proofs(report: Report) -> Failure | None:
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


def _outcome(written: SaveResult | dict[str, object] | None) -> list[str]:
    """Where the output went, and what became of the weights."""
    from rmsnorm_export.report.names import one_line, printable

    if written is None:
        return ["nothing was written"]
    if isinstance(written, dict):
        return [f"wrote {_size(int(str(written['bytes'])))} to stdout"]
    lines = [f"wrote {printable(str(written.path))} ({_size(written.bytes)})"]
    if written.weights != "none":
        lines.append(f"  {_WEIGHTS[written.weights]}")
    lines += [f"  wrote {printable(str(path))}" for path in written.data_files]
    return lines + [f"  note: {one_line(note)}" for note in written.notes]


def _size(count: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"

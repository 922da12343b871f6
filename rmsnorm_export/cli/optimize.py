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
from rmsnorm_export.cli.outcome import (
    failed_proofs,
    outcome_lines,
    require_value,
    unmet,
    write_model,
)
from rmsnorm_export.lower import targets

if TYPE_CHECKING:
    from rmsnorm_export.graph.external import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.lower.targets import Target
    from rmsnorm_export.op.numerics import Numerics


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
    help="; ".join(f"{row.name}: {row.summary}" for row in targets.TARGETS.values()) + ".",
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
    callback=require_value,
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
        from rmsnorm_export.graph.save import check_output
        from rmsnorm_export.records import to_json
        from rmsnorm_export.show.report_text import render, report_lines

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
        failure = unmet(report, require)
        written: SaveResult | dict[str, object] | None = None
        if failure is None:
            with console.progress(state, "Writing"):
                written = write_model(result, output, weights, force)
            failure = failed_proofs(report)
        extra = {"output": written} | ({"error": failure.as_dict()} if failure else {})
        outcome = outcome_lines(written)
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

"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

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
)

if TYPE_CHECKING:
    from rmsnorm_export.lower.targets import Target
    from rmsnorm_export.op.numerics import Numerics


@click.command("inspect", short_help="List the RMSNorms of a model, and what is none.")
@click.argument("model")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default=None,
    help="Say what this target can express; without it, what is an RMSNorm at all.",
)
@numerics_option
@html_file.option
@html_file.force_option
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    model: str,
    target: Target | None,
    numerics: Numerics,
    html_path: Path | None,
    force: bool,
) -> None:
    """List the RMSNorms of MODEL, and what looks like one but is not, with the reason.

    Nothing is written but the page of --html. MODEL is an ONNX file, or - for stdin.
    """
    state = context.ensure_object(State)
    with console.logging_to_stderr(state):
        import dataclasses

        import rmsnorm_export
        from rmsnorm_export.cli.source import model_source, source_name
        from rmsnorm_export.show.report_text import report_lines

        html_file.check(html_path, force=force, taken=(model,))
        source = model_source(model)
        with console.progress(state, "Looking for RMSNorms"):
            report = rmsnorm_export.inspect(
                source, target=target, numerics=numerics, drawings=html_path is not None
            )
        report = dataclasses.replace(report, source=source_name(model, report.source))
        size = html_file.file_size(model)
        html_file.write(html_path, report, force=force, facts=size, planned=True)
        if state.json:
            console.show_json(state, report)
        else:
            console.show(state, report_lines(report, planned=True, verbose=state.verbosity))

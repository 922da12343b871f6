"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.options import (
    TARGETS,
    State,
    format_option,
    logging_options,
    numerics_option,
)

if TYPE_CHECKING:
    from rmsnorm_export.report.result import Numerics, Target


@click.command("inspect", short_help="List the RMSNorms of a model, and what is none.")
@click.argument("model")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default=None,
    help="Say what this target can express; without it, what is an RMSNorm at all.",
)
@numerics_option
@format_option
@logging_options
@click.pass_context
def command(context: click.Context, model: str, target: Target | None, numerics: Numerics) -> None:
    """List the RMSNorms of MODEL, and what looks like one but is not, with the reason.

    Nothing is written. MODEL is an ONNX file, or - for stdin.
    """
    state = context.ensure_object(State)
    with console.logging_to_stderr(state):
        import dataclasses

        import rmsnorm_export
        from rmsnorm_export.cli.source import model_source, source_name
        from rmsnorm_export.report.text import report_lines

        source = model_source(model)
        with console.progress(state, "Looking for RMSNorms"):
            report = rmsnorm_export.inspect(source, target=target, numerics=numerics)
        report = dataclasses.replace(report, source=source_name(model, report.source))
        if state.json:
            console.show_json(state, report)
        else:
            console.show(state, report_lines(report, planned=True, verbose=state.verbosity))

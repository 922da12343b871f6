"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options
from rmsnorm_export.cli.options import FILE, Choice, State
from rmsnorm_export.pipeline.tables import STEPS, StepName
from rmsnorm_export.system.progress import is_styled

if TYPE_CHECKING:
    from rmsnorm_export.pipeline.result import StepOutcome


def _keys(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Print what a pipeline file can hold, and end."""
    if value:
        from rmsnorm_export.pipeline.tables import reference

        click.echo(reference(), nl=False)
        context.exit()


@define("deploy", short_help="Run a whole pipeline: export to package.")
@click.argument("pipeline", type=FILE, metavar="PIPELINE.toml")
@click.option(
    "--until", type=Choice(STEPS), help="The last step to run; later ones stay as they are."
)
@click.option(
    "--force-step",
    type=Choice(STEPS),
    help="Run this step and those after it, changed or not.",
)
@click.option(
    "--require-verified",
    is_flag=True,
    help="Fail with exit code 7 where a model or an engine could not be run here to compare it.",
)
@click.option("--dry-run", is_flag=True, help="Say what would run and why; change nothing.")
@click.option(
    "--keys",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_keys,
    help="List the tables and keys of a pipeline file, and end.",
)
@click.option(
    "--init",
    is_flag=True,
    help="Write PIPELINE.toml, with every table and key and what it is for, and end: a pipeline "
    "that optimizes and proves model.onnx, until you change it.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Take this value for the key, as if it stood in the file: a TOML value, or text. Paths "
    "are relative to the file. May be repeated.",
)
@file_options(
    "--html",
    replaces="Replace an existing file of --html, and in the model repository a version of other "
    "origin and files that were edited.",
)
def command(
    state: State,
    pipeline: str,
    until: StepName | None,
    force_step: StepName | None,
    require_verified: bool,
    dry_run: bool,
    init: bool,
    changes: tuple[str, ...],
    files: Files,
) -> None:
    """Run the steps of PIPELINE.toml: export, optimize, prove, build, verify, bench, package.

    A step that the file has a table for runs when something that its result depends on has
    changed: an option, a file, a package, an earlier step. A run that was killed goes on where it
    was. After a step that fails, no other runs; its exit code is that of the command.

    \b
    Examples:
      rmsnorm-export deploy decoder.toml --init
      rmsnorm-export deploy docs/examples/decoder.toml --html decoder.html
      rmsnorm-export deploy decoder.toml --set optimize.target=ort --set bench.rounds=5
    """
    if init:
        _begin(pipeline, files)
        return
    import logging
    import sys

    from rmsnorm_export.pipeline.run import run_pipeline
    from rmsnorm_export.show.deployment import step_line

    files.check(pipeline)
    lines = state.verbosity == 0 and not state.debug and is_styled(sys.stderr)
    logger = logging.getLogger(__name__)

    def told(outcome: StepOutcome) -> None:
        logger.info("%s", step_line(outcome))
        if lines:  # above the bar for the step at work
            click.echo(step_line(outcome), err=True)

    with console.progress(state, "Reading the pipeline", log=__name__) as step:
        deployment = run_pipeline(
            pipeline,
            changes=changes,
            until=until,
            force_step=force_step,
            dry_run=dry_run,
            force=files.force,
            require_verified=require_verified,
            progress=step,
            told=told,
        )
    files.finish(deployment, deployment.error, inputs=[pipeline])


def _begin(pipeline: str, files: Files) -> None:
    """Write a pipeline file to begin with; an existing one is replaced with --force only."""
    from pathlib import Path

    from rmsnorm_export.errors import UsageError
    from rmsnorm_export.pipeline.tables import reference
    from rmsnorm_export.printable import printable
    from rmsnorm_export.system.files import refusals_as, write_whole

    path = Path(pipeline)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-_") or "model"
    if path.exists() and not files.force:
        raise UsageError(
            "The pipeline file exists.", found=pipeline, fix="use --force to replace it"
        )
    fix = "check the folder and its permissions"
    with refusals_as("The pipeline file cannot be written.", path, fix=fix):
        write_whole(path, reference(name), replace=files.force)
    shown = printable(pipeline)
    click.echo(f"wrote {shown}: set [model] path there, then rmsnorm-export deploy {shown}")

"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console, files
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State
from rmsnorm_export.pipeline.tables import STEPS, StepName

if TYPE_CHECKING:
    from rmsnorm_export.pipeline.result import StepOutcome
    from rmsnorm_export.system.progress import Progress


def _keys(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Print what a pipeline file can hold, and end."""
    if value:
        from rmsnorm_export.pipeline.tables import reference

        click.echo(reference(), nl=False)
        context.exit()


@define("deploy", short_help="Run a whole pipeline: export to package.")
@click.argument("pipeline", metavar="PIPELINE.toml")
@click.option(
    "--until", type=click.Choice(STEPS), help="The last step to run; later ones stay as they are."
)
@click.option(
    "--force-step",
    type=click.Choice(STEPS),
    help="Run this step and those after it, changed or not.",
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
@files.html_option
@files.force_option(
    "Replace an existing file of --html, and in the model repository a version of other origin "
    "and files that were edited."
)
def command(
    state: State,
    pipeline: str,
    until: StepName | None,
    force_step: StepName | None,
    dry_run: bool,
    html_path: Path | None,
    force: bool,
) -> None:
    """Run the steps of PIPELINE.toml: export, optimize, prove, build, verify, bench, package.

    A step that the file has a table for runs when something that its result depends on has
    changed: an option, a file, a package, an earlier step. A run that was killed goes on where it
    was. After a step that fails, no other runs; its exit code is that of the command.

    \b
    Example:
      rmsnorm-export deploy scripts/examples/decoder.toml --html decoder.html
    """
    from rmsnorm_export.pipeline.run import run_pipeline

    files.check_files({"--html": html_path}, force=force, taken=(pipeline,))
    with _shown(state) as (step, told):
        deployment = run_pipeline(
            pipeline,
            until=until,
            force_step=force_step,
            dry_run=dry_run,
            force=force,
            progress=step,
            told=told,
        )
    files.write_page(html_path, deployment, force=force)
    console.finish(state, deployment, deployment.error)


@contextlib.contextmanager
def _shown(state: State) -> Iterator[tuple[Progress, Callable[[StepOutcome], None]]]:
    """On a terminal a bar for the step at work, below a line for each that is over."""
    import logging
    import sys

    logger = logging.getLogger("rmsnorm_export.cli.deploy")
    lines = state.verbosity == 0 and not state.debug and console.is_styled(sys.stderr)
    with console.progress(state, "Reading the pipeline") as show:

        def step(what: str, done: int, total: int) -> None:
            logger.info("%s (%d of %d done)", what, done, total)
            show(what, done, total)

        def told(outcome: StepOutcome) -> None:
            from rmsnorm_export.show.deployment import step_line

            logger.info("%s", step_line(outcome))
            if lines:
                click.echo(step_line(outcome), err=True)

        yield step, told

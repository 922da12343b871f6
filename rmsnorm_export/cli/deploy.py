"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.deploy.tables import STEPS
from rmsnorm_export.system.progress import is_styled

if TYPE_CHECKING:
    from rmsnorm_export.deploy.result import StepOutcome

_PARAMS = [
    click.Argument(["pipeline"], type=FILE, metavar="PIPELINE.toml"),
    click.Option(
        ["--until"], type=click.Choice(STEPS), help="The last step to run; later ones stay."
    ),
    click.Option(["--dry-run"], is_flag=True, help="Say what would run and why; change nothing."),
    click.Option(
        ["--init"],
        is_flag=True,
        help="Write PIPELINE.toml, with every table and key and what it is for, and end: a pipeline"
        " that optimizes and proves model.onnx, until you change it.",
    ),
    click.Option(
        ["--set", "changes"],
        multiple=True,
        metavar="TABLE.KEY=VALUE",
        help="Take this value for the key, as if it stood in the file: a TOML value, or text. Paths"
        " are relative to the file. May be repeated.",
    ),
]


@define("deploy", params=_PARAMS)
def command(files: Files, pipeline: str, init: bool, **options: Any) -> None:
    """Run the steps of PIPELINE.toml: export, optimize, build, verify, bench, package.

    A step that the file has a table for runs when something that its result depends on has
    changed: an option, a file, a package, an earlier step. A run that was killed goes on where it
    was. After a step that fails, no other runs; its exit code is that of the command. To run a
    step again, delete its folder. --force replaces a version in the model repository, too.

    \b
    Examples:
      rmsnorm-export deploy decoder.toml --init
      rmsnorm-export deploy decoder.toml --report decoder.html
      rmsnorm-export deploy decoder.toml --set optimize.target=ort --set bench.rounds=5
    """
    if init:
        _begin(pipeline, force=files.force)
        return
    import logging
    import sys

    from rmsnorm_export.deploy.run import run_pipeline
    from rmsnorm_export.show.deployment import step_line

    files.check(pipeline)
    files.remember(pipeline)
    state, logger = files.state, logging.getLogger(__name__)
    lines = state.verbosity == 0 and not state.debug and is_styled(sys.stderr)

    def told(outcome: StepOutcome) -> None:
        logger.info("%s", step_line(outcome))
        if lines:  # above the bar for the step at work
            click.echo(step_line(outcome), err=True)

    with console.progress(state, "Reading the pipeline", log=__name__) as step:
        deployment = run_pipeline(pipeline, force=files.force, progress=step, told=told, **options)
    files.finish(deployment, deployment.error)


def _begin(pipeline: str, *, force: bool) -> None:
    """Write a pipeline file to begin with."""
    from rmsnorm_export.deploy.tables import begun_file
    from rmsnorm_export.errors import UsageError
    from rmsnorm_export.printable import printable
    from rmsnorm_export.system.files import refusals_as, write_whole

    path = Path(pipeline)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-_") or "model"
    if path.exists() and not force:
        fix = "use --force to replace it"
        raise UsageError("The pipeline file exists.", found=pipeline, fix=fix)
    fix = "check the folder and its permissions"
    with refusals_as("The pipeline file cannot be written.", path, fix=fix):
        write_whole(path, begun_file(name), replace=force)
    shown = printable(pipeline)
    click.echo(f"wrote {shown}: set [model] path there, then rmsnorm-export deploy {shown}")

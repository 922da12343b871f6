"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.deploy.tables import STEPS

_PARAMS = [
    click.Argument(["pipeline"], type=FILE, metavar="PIPELINE.toml"),
    click.Option(
        ["--until"], type=click.Choice(STEPS), help="The last step to run; later ones stay."
    ),
    click.Option(["--dry-run"], is_flag=True, help="Say what would run and why; change nothing."),
]


@define("deploy", params=_PARAMS)
def command(files: Files, pipeline: str, **options: Any) -> None:
    """Run the steps of PIPELINE.toml: export, optimize, build, verify, bench, package.

    A step that the file has a table for runs when something that its result depends on has
    changed: an option, a file, a package, an earlier step. A run that was killed goes on where it
    was. After a step that fails, no other runs; its exit code is that of the command. To run a
    step again, delete its folder. --force replaces a version in the model repository, too.

    \b
    Example:
      rmsnorm-export deploy decoder.toml --report decoder.html
    """
    from rmsnorm_export.deploy.run import run_pipeline

    files.check(pipeline)
    files.remember(pipeline)
    with console.progress(files.state, "Reading the pipeline") as step:
        deployment = run_pipeline(pipeline, force=files.force, progress=step, **options)
    files.finish(deployment, deployment.error)

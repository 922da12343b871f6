"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.deploy.tables import STEPS
from rmsnorm_export.printable import printable

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
    """
    if init:
        from rmsnorm_export.deploy.tables import begin

        begin(pipeline, force=files.force)
        shown = printable(pipeline)
        click.echo(f"wrote {shown}: set [model] path there, then rmsnorm-export deploy {shown}")
        return
    from rmsnorm_export.deploy.run import run_pipeline

    files.check(pipeline)
    files.remember(pipeline)
    with console.progress(files.state, "Reading the pipeline") as step:
        deployment = run_pipeline(pipeline, force=files.force, progress=step, **options)
    files.finish(deployment, deployment.error)

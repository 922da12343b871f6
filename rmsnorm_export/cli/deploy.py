"""``deploy``: every step from a model to a server, as a TOML file says."""

from __future__ import annotations

import shlex
from importlib import resources
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.deploy.settings import STEPS

_PARAMS = [
    click.Argument(["pipeline"], type=FILE, metavar="PIPELINE.toml"),
    click.Option(
        ["--until"], type=click.Choice(STEPS), help="The last step to run; later ones stay."
    ),
    click.Option(["--dry-run"], is_flag=True, help="Say what would run and why; change nothing."),
    click.Option(
        ["--init"], is_flag=True, help="Write a commented PIPELINE.toml to start with, and end."
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
      rmsnorm-export deploy --init pipeline.toml
      rmsnorm-export deploy decoder.toml --report decoder.html
    """
    if init:
        if files.reports or any(options.values()):
            raise click.UsageError("--init goes with --force and --format alone")
        _write_start(files, pipeline)
        return
    from rmsnorm_export.deploy.run import run_pipeline

    files.check(pipeline)
    files.remember(pipeline)
    with console.progress(files.state, "Reading the pipeline") as step:
        deployment = run_pipeline(pipeline, force=files.force, progress=step, **options)
    files.finish(deployment, deployment.error)


def _write_start(files: Files, place: str) -> None:
    from rmsnorm_export.graph.save import check_output
    from rmsnorm_export.records import document
    from rmsnorm_export.system.files import write_whole

    path = check_output(place, force=files.force)
    text = resources.files("rmsnorm_export.deploy").joinpath("start.toml").read_text("utf-8")
    write_whole(path, text, replace=files.force)
    wrote = f"wrote {path}\nedit it, then run: rmsnorm-export deploy {shlex.quote(place)}\n"
    click.echo(document("starting_file", {"path": path}) if files.state.json else wrote, nl=False)

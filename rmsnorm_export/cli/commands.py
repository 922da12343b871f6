"""Decorators that make a function a command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE, FORMAT, LOGGING, PATH, BriefCommand, State, flags_of
from rmsnorm_export.errors import UsageError

REPORT = click.Option(
    ["--report", "reports"],
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Write the report to FILE, too: as JSON where it ends in .json, as a page for a browser "
    "in .html, as text in .txt. May be repeated; a report of an earlier run is replaced.",
)
MODEL = click.Argument(["model"], type=FILE)


def output(what: str, *, on_disk: bool = False) -> click.Option:
    """Make the option -o of a command that writes ``what``; ``on_disk``: which is no stream."""

    def check(_: click.Context, __: click.Parameter, value: str) -> str:
        if on_disk and value == console.STDIO:
            found, fix = "-o -", "give a path after -o"
            raise UsageError("The output cannot be written to stdout.", found=found, fix=fix)
        return value

    return click.Option(
        ["-o", "--output"], required=True, type=FILE, metavar="OUT", help=what, callback=check
    )


def define(
    name: str,
    *records: Any,
    params: Sequence[click.Parameter] = (),
    reports: bool = True,
    group: click.Group | None = None,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that takes ``Files``, its arguments and the options of records.

    Args:
        name: of the command.
        records: of its options.
        params: its arguments, and the options that no record has.
        reports: it has --report, and --force for all that it writes; else ``force`` is its own.
        group: that it belongs to.
    """
    own = [*params, *flags_of(*records)]
    if reports:
        own += [REPORT, click.Option(["--force"], is_flag=True, help="Replace existing files.")]

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(**values: Any) -> None:
            state = click.get_current_context().ensure_object(State)
            force = values.pop("force") if reports else False
            files = Files(state, values.pop("reports", ()), force=force)
            console.log_to_stderr(state)
            console.take_stdin()
            function(files, **values)

        kind, params = click.Command if group else BriefCommand, [*own, FORMAT, *LOGGING]
        command = kind(name, callback=run, params=params, help=function.__doc__)
        if group is not None:
            group.add_command(command)
        return command

    return decorate

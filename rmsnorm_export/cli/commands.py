"""What makes a function a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE, FORMAT, LOGGING, PATH, State, flags_of

_SIZES = ("--dims", "--shapes")
_ENTRY = re.compile(r"[^-=][^=]*=\d[\dx,.:]*")

REPORT = click.Option(
    ["--report", "reports"],
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Write the report to FILE, too: as JSON where it ends in .json, as a page for a browser "
    "in .html, else as text. May be repeated.",
)
MODEL = click.Argument(["model"], type=FILE)
OUTPUT = click.Option(
    ["-o", "--output"],
    required=True,
    type=FILE,
    metavar="OUT",
    help="File or folder to write, or - for stdout.",
)


class Command(click.Command):
    """A command whose sizes need no quotes: ``--dims batch=1,4 sequence=128``."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_ = super().get_params(ctx)
        return [*own, FORMAT, *LOGGING, help_]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spelled, flag, due = [], "", False
        for arg in args:
            if due:
                due = False
            elif arg.partition("=")[0] in _SIZES:
                flag, _, value = arg.partition("=")
                due = not value
            elif flag and _ENTRY.fullmatch(arg):
                spelled.append(flag)
            else:
                flag = ""
            spelled.append(arg)
        return super().parse_args(ctx, spelled)


def define(
    name: str,
    *records: Any,
    params: Sequence[click.Parameter] = (),
    reports: bool = True,
    group: click.Group | None = None,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that takes ``Files``, its arguments and the options of records.

    It logs on stderr while it runs. A model is on stdout where its ``output`` is ``-``, unless its
    options do not include ``weights``.

    Args:
        name: of the command.
        records: of its options.
        params: its arguments, and the options that no record has.
        reports: it has --report, and --force for all that it writes; else ``force`` is its own.
        group: that it belongs to.
    """
    own = [*params, *flags_of(*records)]
    if reports:
        replace = click.Option(["--force"], is_flag=True, help="Replace files that are there.")
        own += [REPORT, replace]

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(**given: Any) -> None:
            state = click.get_current_context().ensure_object(State)
            state.model_on_stdout = "weights" in given and given.get("output") == console.STDIO
            files = Files(state)
            if reports:
                files = Files(state, given.pop("reports"), force=given.pop("force"))
            from rmsnorm_export.system.provenance import COMMAND

            before = COMMAND.set(state.command)
            try:
                with console.nothing_to_ask(), console.logging_to_stderr(state):
                    function(files, **given)
            finally:
                COMMAND.reset(before)

        command = Command(name, callback=run, params=own, help=function.__doc__)
        if group is not None:
            group.add_command(command)
        return command

    return decorate

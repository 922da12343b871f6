"""What makes a function a command."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.options import State, click_options, format_option, logging_options

_SIZES = ("--dims", "--shapes")
_ENTRY = re.compile(r"[^-=][^=]*=\d[\dx,.:]*")


class _Command(click.Command):
    """A command whose sizes need no quotes: ``--dims batch=1,4 sequence=128``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, flag, due = [], "", False
        for arg in args:
            if due:
                due = False
            elif arg.partition("=")[0] in _SIZES:
                flag, _, value = arg.partition("=")
                due = not value
            elif flag and _ENTRY.fullmatch(arg):
                given.append(flag)
            else:
                flag = ""
            given.append(arg)
        return super().parse_args(ctx, given)


def define(
    name: str, *records: Any, short_help: str, group: click.Group | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """A command of a function that takes the state, its arguments and the options of records.

    It gets ``--format``, the options for all commands, and logs on stderr while it runs. A model
    is on stdout where its ``output`` is ``-``, unless its options do not include ``weights``.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(context: click.Context, /, **given: Any) -> None:
            state = context.ensure_object(State)
            state.model_on_stdout = "weights" in given and given.get("output") == console.STDIO
            from rmsnorm_export.system.provenance import COMMAND

            before = COMMAND.set(state.command)
            try:
                with console.nothing_to_ask(), console.logging_to_stderr(state):
                    function(state, **given)
            finally:
                COMMAND.reset(before)

        known: Any = click.pass_context(run)
        own = known.__dict__.pop("__click_params__", [])
        for options in (logging_options, format_option, click_options(*records)):
            known = options(known)
        known.__click_params__ += own  # click shows the last first
        made = click.command(name, cls=_Command, short_help=short_help)(known)
        if group is not None:
            group.add_command(made)
        return made

    return decorate

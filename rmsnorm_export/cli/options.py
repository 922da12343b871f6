"""A command line: what every command takes, the state that this sets, and the flags of records.

Only click and the records are imported here.
"""

from __future__ import annotations

import itertools
import operator
import shlex
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from rmsnorm_export.printable import did_you_mean

if TYPE_CHECKING:
    from rmsnorm_export.options import OptionEntry

PROGRAM = "rmsnorm-export"


class State:
    """What the options for all commands say.

    Attributes:
        verbosity: number of ``-v`` less the number of ``-q``.
        debug: print tracebacks.
        json: ``--format json``.
        model_on_stdout: stdout carries a model, so reports and errors go to stderr.
        command: the whole command line, for the reports.
    """

    __slots__ = ("command", "debug", "json", "model_on_stdout", "verbosity")

    def __init__(self) -> None:
        self.verbosity = 0
        self.debug = False
        self.json = False
        self.model_on_stdout = False
        self.command = PROGRAM

    @classmethod
    def of_arguments(cls, arguments: Sequence[str]) -> State:
        """Return the state as far as it must be known before the arguments are parsed.

        A wrong option must be reported in the format, and on the stream, that were asked for.
        """
        state = cls()
        known = arguments[: arguments.index("--")] if "--" in arguments else arguments
        words = {*known, *map("=".join, itertools.pairwise(known))}
        state.json = "--format=json" in words
        state.model_on_stdout = not words.isdisjoint({"--output=-", "-o-", "-o=-"})
        state.debug = "--debug" in words
        state.command = shlex.join([PROGRAM, *arguments])
        return state


class Choice(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """Names, of which the one that is most like a mistyped one is suggested."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = did_you_mean(str(value), [str(name) for name in self.choices]).strip()
            message = f"{error.message} {hint}".strip()
            raise click.BadParameter(message, ctx, param) from error


FILE = click.Path(allow_dash=True)
PATH = click.Path(path_type=Path)


def _state_option(
    attribute: str, change: Callable[[Any, Any], Any], *flags: str, **settings: Any
) -> click.Option:
    """Make a flag whose value changes the state and is no argument of the command."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        state = context.ensure_object(State)
        setattr(state, attribute, change(getattr(state, attribute), value))

    return click.Option(flags, expose_value=False, callback=callback, **settings)


LOGGING = (
    _state_option(
        "verbosity",
        operator.add,
        "-v",
        "--verbose",
        count=True,
        help="Print what is left out otherwise (every site, bound, file); log what happens."
        " Twice: log more.",
    ),
    _state_option(
        "verbosity",
        operator.sub,
        "-q",
        "--quiet",
        count=True,
        help="Print the first line of the report only, and no progress.",
    ),
    _state_option(
        "debug", operator.or_, "--debug", is_flag=True, help="Print the traceback of an error."
    ),
)
"""Options of all commands, taken before and after the command's name."""

FORMAT = _state_option(
    "json",
    lambda _, value: value == "json",
    "--format",
    type=Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How the result is printed; json: one document, with a schema_version.",
)


def flags_of(*records: Any) -> list[click.Option]:
    """Make the flags of records, in their order; what several records have is one flag."""
    from rmsnorm_export.options import spread

    every = [entry for record in records for entry in spread(record) if entry.facts.cli]
    return [_flag(entry) for entry in {entry.name: entry for entry in reversed(every)}.values()][
        ::-1
    ]


def _flag(entry: OptionEntry) -> click.Option:
    """Make the flag of an option: its kind from the type, its sentence and default from the field.

    Bounds are those of the record, which is made of the values.
    """
    from rmsnorm_export.options import REQUIRED, item_type, members

    facts, default = entry.facts, entry.default
    help_ = facts.help + (f"  [default: {facts.shown}]" if facts.shown else "")
    settings: dict[str, Any] = {"help": help_, "metavar": facts.metavar or None}
    kinds = members(entry.written)
    if kinds == [bool]:
        off = "--no-" + entry.flag.removeprefix("--")
        if default is None:
            return click.Option([f"{entry.flag}/{off}", entry.name], default=None, **settings)
        return click.Option(
            [off if default else entry.flag, entry.name],
            is_flag=True,
            flag_value=not default,
            default=default,
            **settings,
        )
    item = next(filter(None, map(item_type, kinds)), None)
    if typing.get_origin(item) is Literal:
        shown = ",".join(default) if default else None if default is None else "none"
        settings |= {"metavar": "NAME,...", "default": shown, "show_default": default is not None}
        settings["callback"] = lambda _context, _parameter, value: _names(value)
    elif item is not None:
        settings |= {"multiple": True, "type": _click_type(item if str not in kinds else str)}
        settings["callback"] = lambda _context, _parameter, value: value or default
    else:
        settings |= {"type": _click_type(kinds[0] if str not in kinds else str)}
        if default is REQUIRED:
            settings["required"] = True
        elif default is not None:
            settings |= {"default": default, "show_default": True}
    return click.Option([entry.flag, entry.name], **settings)


def _click_type(kind: Any) -> Any:
    """Return the type of one value."""
    if typing.get_origin(kind) is Literal:
        return Choice(typing.get_args(kind))
    return PATH if kind is Path else kind if kind in (int, float) else str


def _names(value: str | None) -> list[str] | None:
    """Read names with commas between them; ``none`` for none of them."""
    if value is None or value == "none":
        return value and []
    return [name.strip() for name in value.split(",")]

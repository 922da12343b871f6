"""A command line: what every command takes, the state that this sets, and the flags of records.

Only click and the records are imported here.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rmsnorm_export.options import OptionEntry

PROGRAM = "rmsnorm-export"


@dataclasses.dataclass(slots=True)
class State:
    """The values of the options for all commands.

    Attributes:
        verbosity: number of ``-v`` less the number of ``-q``.
        debug: print tracebacks.
        help_all: ``--help`` lists every option.
        json: ``--format json``.
        model_on_stdout: stdout carries a model, so reports and errors go to stderr.
        command: the whole command line, for the reports.
    """

    verbosity: int = 0
    debug: bool = False
    help_all: bool = False
    json: bool = False
    model_on_stdout: bool = False
    command: str = PROGRAM

    @classmethod
    def of_arguments(cls, arguments: list[str]) -> State:
        """Return the state as far as it must be known before the arguments are parsed.

        A wrong option must be reported in the format, and on the stream, that were asked for.
        ``--debug`` is taken out of the arguments, wherever it stands.
        """
        state = cls(command=shlex.join([PROGRAM, *arguments]))
        end = arguments.index("--") if "--" in arguments else len(arguments)
        words = {*arguments[:end], *map("=".join, itertools.pairwise(arguments[:end]))}
        arguments[:end] = [word for word in arguments[:end] if word != "--debug"]
        state.json = "--format=json" in words
        state.model_on_stdout = not words.isdisjoint({"--output=-", "-o-", "-o=-"})
        state.debug, state.help_all = "--debug" in words, "--help-all" in words
        return state


FILE = click.Path(allow_dash=True)
PATH = click.Path(path_type=Path)


def _count(context: click.Context, parameter: click.Parameter, value: int) -> None:
    context.ensure_object(State).verbosity += value if parameter.name == "verbose" else -value


_STATE: dict[str, Any] = {"expose_value": False, "callback": _count, "count": True}
LOGGING = [
    click.Option(["-v", "--verbose"], **_STATE, help="Print all details, and log; -vv logs more."),
    click.Option(["-q", "--quiet"], **_STATE, help="Print the verdict alone, and no progress."),
]
"""Options of all commands, taken before and after the command's name."""

DEBUG = click.Option(
    ["--debug"], is_flag=True, expose_value=False, help="Print the traceback of an error, too."
)
FORMAT = click.Option(
    ["--format"],
    expose_value=False,  # ``State.of_arguments`` has read it
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the result is printed; json: one document, with a schema_version.",
)


_ALWAYS = ("force", "verbose", "help-all")
BRIEF = {
    "bench": "target provider native shapes seconds threads report format",
    "build": "output backend shapes dims plugin hardware-compatible format",
    "export": "output task names static-cache shapes dtype for prove fusions quantize verify"
    " report",
    "optimize": "output target numerics dtype for prove require weights report format",
    "package": "output name version max-batch kind shapes plugin format",
    "verify": "inputs shapes rtol atol backend-b generate report format",
}
"""Command -> flags that ``--help`` lists beside those of all; ``--help-all`` lists every one."""


class BriefCommand(click.Command):
    """A command whose ``--help`` lists few options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the options."""
        every = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        flags = {*BRIEF.get(str(self.name), "").split(), *_ALWAYS}
        is_brief = self.name in BRIEF and not ctx.ensure_object(State).help_all
        listed = [one for one in every if not is_brief or one.opts[-1][2:] in flags]
        with formatter.section("Options"):
            formatter.write_dl([*filter(None, (one.get_help_record(ctx) for one in listed))])
        if is_brief:
            formatter.write_paragraph()
            formatter.write_text(f"  --help-all lists {len(every) - len(listed)} more options.")


def flags_of(*records: Any) -> list[click.Option]:
    """Make the flags of records, in their order; what several records have is one flag."""
    from rmsnorm_export.options import entries

    listed: dict[str, OptionEntry] = {}
    for entry in (entry for record in records for entry in entries(record) if entry.facts.cli):
        listed.setdefault(entry.name, entry)
    return [_flag(entry) for entry in listed.values()]


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
        off = "" if default is False else f"/--no-{entry.flag.removeprefix('--')}"
        names = [entry.flag + off, entry.name]
        return click.Option(names, is_flag=True, default=default, **settings)
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


class _Names(click.Choice[str]):
    """Names, which help and completion list; the record says of another what to write."""

    def convert(self, value: str, param: Any, ctx: Any) -> str:  # noqa: ARG002 (click's signature)
        return value


def _click_type(kind: Any) -> Any:
    """Return the type of one value."""
    if typing.get_origin(kind) is Literal:
        return _Names(typing.get_args(kind))
    return PATH if kind is Path else kind if kind in (int, float) else str


def _names(value: str | None) -> list[str] | None:
    """Read names with commas between them; ``none`` for none of them."""
    if value is None:
        return None
    return [] if value == "none" else [name.strip() for name in value.split(",")]

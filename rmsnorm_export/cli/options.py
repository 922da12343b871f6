"""A command line: what every command takes, the state that this sets, and the flags of records.

Only click and the records are imported here.
"""

from __future__ import annotations

import itertools
import operator
import shlex
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from rmsnorm_export.options import REQUIRED, OptionEntry, item_type, members, spread
from rmsnorm_export.printable import nearest
from rmsnorm_export.records import UNLIMITED, Limits

PROGRAM = "rmsnorm-export"

F = TypeVar("F", bound=Callable[..., Any])


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
        """The state as far as it must be known before the arguments are parsed.

        A wrong option must be reported in the format, and on the stream, that were asked for.
        """
        state = cls()
        known = arguments[: arguments.index("--")] if "--" in arguments else arguments
        pairs = list(itertools.pairwise(known))
        state.json = "--format=json" in known or ("--format", "json") in pairs
        state.model_on_stdout = (
            "--output=-" in known
            or "-o-" in known
            or ("-o", "-") in pairs
            or ("--output", "-") in pairs
        )
        state.debug = "--debug" in known
        state.command = shlex.join([PROGRAM, *arguments])
        return state


class Choice(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """Names, of which the one that is most like a mistyped one is suggested."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = _suggestion(str(value), [str(name) for name in self.choices])
            raise click.BadParameter(error.message + near, ctx, param) from error


def _suggestion(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""


class _FileText(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A path as it was written, - included; a shell completes the names of files."""

    name = "text"

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


FILE = _FileText()


def _state_option(
    attribute: str, change: Callable[[Any, Any], Any], *flags: str, **settings: Any
) -> Callable[[F], F]:
    """A flag whose value changes the state and is no argument of the command."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        state = context.ensure_object(State)
        setattr(state, attribute, change(getattr(state, attribute), value))

    return click.option(*flags, expose_value=False, callback=callback, **settings)


_LOGGING = (
    _state_option(
        "debug", operator.or_, "--debug", is_flag=True, help="Print the traceback of an error."
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
        "verbosity",
        operator.add,
        "-v",
        "--verbose",
        count=True,
        help="Print what is left out otherwise (every site, bound, file); log what happens."
        " Twice: log more.",
    ),
)


def logging_options(function: F) -> F:
    """-v, -q and --debug; taken before and after the command's name."""
    for option in _LOGGING:
        function = option(function)
    return function


format_option = _state_option(
    "json",
    lambda _, value: value == "json",
    "--format",
    type=Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How the result is printed; json: one document, with a schema_version.",
)


def click_options(*records: Any) -> Callable[[F], F]:
    """The flags of records, in their order, as parameters called as the fields.

    What several records have is one flag.
    """

    def decorate(function: F) -> F:
        every = [entry for record in records for entry in spread(record) if entry.facts.cli]
        known = {entry.name: entry for entry in reversed(every)}
        for entry in known.values():
            function = _click_option(entry)(function)
        return function

    return decorate


class _Option(click.Option):
    """A flag whose old names work and are not shown."""

    def __init__(self, declared: Sequence[str], old: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init__([*declared, *old], **rest)
        self.old = old

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every = self.opts
        self.opts = [name for name in every if name not in self.old]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


def _click_option(entry: OptionEntry) -> Callable[[F], F]:
    """The flag of an option: its kind from the type, its sentence and default from the field."""
    facts, default = entry.facts, entry.default
    text = facts.help + (f"  [default: {facts.shown}]" if facts.shown else "")
    settings: dict[str, Any] = {"help": text, "old": facts.old, "cls": _Option}
    if facts.metavar:
        settings["metavar"] = facts.metavar
    kinds = members(entry.written)
    if kinds == [bool]:
        on, off = entry.flag, "--no-" + entry.flag.removeprefix("--")
        if default is None:
            return click.option(f"{on}/{off}", entry.name, default=None, **settings)
        settings["callback"] = lambda _context, _parameter, value: value != default
        return click.option(off if default else on, entry.name, is_flag=True, **settings)
    if default is REQUIRED:
        settings["required"] = True
    elif default not in (None, ()):
        settings |= {"default": default, "show_default": True}
    if kinds == [float]:
        settings.setdefault("metavar", "FLOAT")
    settings |= _click_kind(entry, kinds)
    return click.option(entry.flag, entry.name, **settings)


def _click_kind(entry: OptionEntry, kinds: Sequence[Any]) -> dict[str, Any]:
    """How the text of a flag becomes a value."""
    default, within = entry.default, entry.facts.within
    for kind in kinds:
        item, sizes = item_type(kind), typing.get_args(kind)
        if item is None:
            continue
        if typing.get_origin(item) is typing.Literal:
            shown = ",".join(default or ()) or (None if default is None else "none")
            return {
                "default": shown,
                "show_default": True,
                "metavar": "NAME,...",
                "callback": _comma_names(typing.get_args(item)),
            }
        if len(sizes) > 1 and sizes[-1] is not Ellipsis:
            return {"type": _click_type(item, within), "nargs": len(sizes)}
        return {
            "type": _click_type(item, within),
            "multiple": True,
            "default": (),
            "show_default": False,
            "callback": lambda _context, _parameter, value: entry.read(value) if value else default,
        }
    if entry.facts.read is not None:
        return {
            "type": str,
            "callback": lambda _context, _parameter, value: (
                value if value is None else entry.read(value)
            ),
        }
    return {"type": _click_type(kinds[0], within)}


def _click_type(kind: Any, within: Limits) -> Any:
    """The type of one value."""
    if typing.get_origin(kind) is typing.Literal:
        return Choice(typing.get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (int, float):
        least, most = (None if end is None else kind(end) for end in within)
        ranged = click.IntRange if kind is int else click.FloatRange
        return kind if within == UNLIMITED else ranged(least, most)
    return str


def _comma_names(
    known: tuple[str, ...],
) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """Names out of ``known``, with commas between them; ``none`` for none of them."""

    def read(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(","))
        if names == ("none",):
            return ()
        for name in names:
            if name not in known:
                raise click.BadParameter(
                    f"{name!r} is not one of {', '.join(known)}.{_suggestion(name, known)}"
                )
        return names

    return read

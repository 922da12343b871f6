"""What every command takes: -v, -q, --debug, --format; and the state that they set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rmsnorm_export.lower import targets
from rmsnorm_export.op.numerics import NUMERICS_ORDER

F = TypeVar("F", bound=Callable[..., Any])

TARGETS = tuple(targets.TARGETS)
NUMERICS = NUMERICS_ORDER


class State:
    """What the options for all commands say.

    Attributes:
        verbosity: number of ``-v`` less the number of ``-q``.
        debug: print tracebacks.
        json: ``--format json``.
        model_on_stdout: stdout carries a model, so reports and errors go to stderr.
    """

    __slots__ = ("debug", "json", "model_on_stdout", "verbosity")

    def __init__(self) -> None:
        self.verbosity = 0
        self.debug = False
        self.json = False
        self.model_on_stdout = False

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
        return state


def _add_verbosity(context: click.Context, parameter: click.Parameter, value: int) -> None:
    step = 1 if parameter.name == "verbose" else -1
    context.ensure_object(State).verbosity += step * value


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.ensure_object(State).debug |= value


def _set_format(context: click.Context, _: click.Parameter, value: str) -> None:
    context.ensure_object(State).json = value == "json"


def logging_options(function: F) -> F:
    """-v, -q and --debug; taken before and after the command's name."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_set_debug,
            help="Print the traceback of an error.",
        ),
        click.option(
            "-q",
            "--quiet",
            count=True,
            expose_value=False,
            callback=_add_verbosity,
            help="Print the first line of the report only, and no progress.",
        ),
        click.option(
            "-v",
            "--verbose",
            count=True,
            expose_value=False,
            callback=_add_verbosity,
            help="List every site; log what happens. Twice: log more.",
        ),
    ):
        function = option(function)
    return function


def format_option(function: F) -> F:
    """--format text|json."""
    return click.option(
        "--format",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        expose_value=False,
        callback=_set_format,
        help="How the result is printed; json: one document, with a schema_version.",
    )(function)


def numerics_option(function: F) -> F:
    """--numerics exact|reordered|upcast."""
    return click.option(
        "--numerics",
        type=click.Choice(NUMERICS),
        default="reordered",
        show_default=True,
        help="Loosest change of rounding allowed. exact: the same rounding steps; reordered: one "
        "rounding of a half type moved or dropped; upcast: half sums become float32 sums.",
    )(function)


def seed_option(what: str) -> Callable[[F], F]:
    """--seed, from 0; ``what`` says of which random numbers."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default="0",
        metavar="N",
        help=what,
    )

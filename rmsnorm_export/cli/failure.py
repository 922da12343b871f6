"""Any exception as an exit code and three lines, or as a JSON document."""

from __future__ import annotations

import dataclasses
import sys
import traceback

import click

from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, ExitCode, Failure
from rmsnorm_export.options import OptionError
from rmsnorm_export.printable import one_line


class ReportedError(Exception):
    """An error that a command has printed in its document already.

    Only the three lines and the exit code are still to do.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


def explain(error: BaseException) -> Failure:
    """Return what to tell the user about ``error``, in lines that are safe to print."""
    if isinstance(error, ReportedError):
        return error.failure
    failure = _failure(error)
    found = one_line(failure.found) or "no details"
    fix = one_line(failure.fix) or "run the command again with --debug for the details"
    return Failure(one_line(failure.what), found, fix, failure.exit_code)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, OptionError):
        return Failure.of(error.at(error.entry.flag))
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "rmsnorm-export"
        what = "The command line cannot be used as given."
        return Failure(what, error.format_message(), f"see {path} --help", int(ExitCode.USAGE))
    if isinstance(error, ModuleNotFoundError) and error.name:
        from rmsnorm_export.system.packages import pip_install, tried_versions

        package = error.name.split(".")[0]
        what = f"The package {package} is needed and not installed."
        fix = pip_install((tried_versions(package) and package) or "rmsnorm-export")
        return Failure(what, str(error), fix, int(ExitCode.BACKEND))
    return Failure.of(error)


def with_problem(error: Error | None, place: str, problem: Exception) -> Error:
    """Return the error of a command whose later part, e.g. ``--report``, failed, too."""
    failure = _failure(problem)
    if error is None:
        return failure.error(f"{place}: ")
    found = f"{error.found}; {place}: {failure.what} {failure.found}"
    return dataclasses.replace(Failure.of(error), found=found).error()


def three_lines(error: BaseException) -> list[str]:
    """Return what happened, what was found and how to fix it."""
    failure = explain(error)
    return [f"error: {failure.what}", f"found: {failure.found}", f"fix: {failure.fix}"]


def report(error: BaseException, state: State) -> int:
    """Report ``error`` as ``state`` asks for, and return the exit code.

    On stderr three lines, after the traceback with ``--debug``. With ``--format json`` a document
    on stdout too, unless the error is part of one that is printed already. Where stdout carries
    the model, the document goes to stderr instead of the three lines, so that stderr parses.
    """
    failure = explain(error)
    if state.debug:
        traceback.print_exception(error, file=sys.stderr)
    if not (state.json and state.model_on_stdout):
        click.echo("\n".join(three_lines(error)), err=True)
    if state.json and not isinstance(error, ReportedError):
        from rmsnorm_export.records import document

        body = dataclasses.asdict(failure)
        click.echo(document("error", body), nl=False, err=state.model_on_stdout)
    return failure.exit_code

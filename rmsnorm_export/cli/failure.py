"""Any exception as an exit code and three lines, or as a JSON document."""

from __future__ import annotations

import sys
import traceback

import click

from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, ExitCode
from rmsnorm_export.options import OptionError

_OPTIONAL = {
    "onnxruntime": "[ort]",
    "torch": "[torch]",
    "onnxscript": "[torch]",
    "transformers": "transformers",
}
"""Modules that are not always installed with this package, and what brings them."""


class Failure:
    """What the user is told about an exception.

    Attributes:
        what, found, fix: one line each, safe to print.
        exit_code: of the program.
    """

    __slots__ = ("exit_code", "fix", "found", "what")

    def __init__(self, what: str, found: str, fix: str, exit_code: int) -> None:
        from rmsnorm_export.printable import one_line

        what = one_line(what).rstrip(".")
        self.what = what[:1].upper() + what[1:]
        self.found = one_line(found) or "no details"
        self.fix = one_line(fix) or "run the command again with --debug for the details"
        self.exit_code = int(exit_code)

    def as_dict(self) -> dict[str, str | int]:
        """The error object of the JSON documents."""
        return {
            "what": self.what,
            "found": self.found,
            "fix": self.fix,
            "exit_code": self.exit_code,
        }


def error_document(error: Error | None) -> dict[str, object]:
    """The key of a JSON document for what the command ends with; none where it ends well."""
    return {} if error is None else {"error": explain(error).as_dict()}


class ReportedError(Exception):
    """Raised by a command that has printed its document, with the error in it, already.

    Only the three lines and the exit code are left to do.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


def explain(error: BaseException) -> Failure:
    """What to tell the user about ``error``."""
    if isinstance(error, ReportedError):
        return error.failure
    if isinstance(error, OptionError):
        what = f"{error.entry.flag}: {error.what[:1].lower()}{error.what[1:]}"
        return Failure(what, error.found, error.fix, error.exit_code)
    if isinstance(error, Error):
        return Failure(error.what, error.found, error.fix, error.exit_code)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        from rmsnorm_export.system.packages import pip_install

        package = error.name.split(".")[0]
        return Failure(
            f"The package {package} is needed and not installed.",
            str(error),
            pip_install(_OPTIONAL.get(package, "rmsnorm-export")),
            ExitCode.BACKEND,
        )
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename!s}" if error.filename is not None else ""
        return Failure(
            "A file cannot be read or written.",
            f"{error.strerror}{place}",
            "check the path, its permissions and the free space",
            ExitCode.INPUT,
        )
    if isinstance(error, MemoryError):
        return Failure(
            "Out of memory.",
            str(error) or "an allocation failed",
            "use a machine with more memory, or smaller sizes with --shapes or --dims",
            ExitCode.INTERNAL,
        )
    return Failure(
        "Internal error in rmsnorm-export.",
        f"{type(error).__name__}: {error}",
        "run the same command with --debug and report what it prints",
        ExitCode.INTERNAL,
    )


def _usage(error: click.ClickException) -> Failure:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "rmsnorm-export"
    return Failure(
        "The command line cannot be used as given.",
        error.format_message(),
        f"see {path} --help",
        ExitCode.USAGE,
    )


def report(error: BaseException, state: State) -> int:
    """Tell the user about ``error`` as ``state`` asks for, and return the exit code.

    On stderr three lines, after the traceback with ``--debug``. With ``--format json`` a document
    on stdout too, unless the error is part of one that is printed already. Where stdout carries
    the model, the document goes to stderr and the three lines stay away, so that stderr parses.
    """
    failure = explain(error)
    if state.debug:
        traceback.print_exception(error, file=sys.stderr)
    if not (state.json and state.model_on_stdout):
        click.echo(f"error: {failure.what}\nfound: {failure.found}\nfix: {failure.fix}", err=True)
    if state.json and not isinstance(error, ReportedError):
        from rmsnorm_export.records import document

        click.echo(document("error", failure.as_dict()), nl=False, err=state.model_on_stdout)
    return failure.exit_code

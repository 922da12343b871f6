"""The entry point: the table of commands, exit codes, and errors in three lines.

Only click is imported here; a command's own imports happen when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence

import click

from rmsnorm_export.cli import failure
from rmsnorm_export.cli.options import DEBUG, LOGGING, PROGRAM, State
from rmsnorm_export.errors import ExitCode, UsageError
from rmsnorm_export.system.lazy import sympy_when_used

_COMPLETE = "_RMSNORM_EXPORT_COMPLETE"

_COMMANDS = {
    "optimize": "Make every RMSNorm of a model one node.",
    "inspect": "List the RMSNorms of models, and look-alikes.",
    "verify": "Compare the outputs of two models.",
    "export": "Export a PyTorch model, every RMSNorm one node.",
    "build": "Build a TensorRT or TensorRT-RTX engine.",
    "bench": "Measure a model against its targets.",
    "package": "Make a Triton model repository.",
    "deploy": "Run a whole pipeline: export to package.",
    "plugin": "Build the plugin.",
    "doctor": "Check this installation.",
}
"""Name, and the line of the list; so that the list is shown without the commands."""

_EPILOG = """\b
To begin with: inspect MODEL; optimize MODEL -o OUT --prove; export ./LLAMA -o OUT
from PyTorch; deploy --init FILE.toml, for all steps from there to a server.
The repository has tutorials (docs/), examples (docs/examples) and a demo (scripts/).
\n\b
Exit codes: 0 done; 1 internal error; 2 wrong usage; 3 input unreadable, or
output not writable; 4 verification or a proof failed; 5 --require not met;
6 a needed package or GPU is missing; 7 what was to be compared could not be
run here; 130 interrupted; 141 the reader of the output went away.
"""


class _Commands(click.Group):
    """The group of commands; a command's module is imported when it is asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a file in its place lacks one."""
        first = args[0]
        if first not in _COMMANDS and (os.path.exists(first) or first.endswith(".onnx")):
            model = shlex.quote(first)
            raise UsageError(
                "A command has to come before the model.",
                found=first,
                fix=f"write rmsnorm-export inspect {model}, or optimize {model} -o OUT.onnx",
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"rmsnorm_export.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(_COMMANDS),  # for suggestions and completion
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help", "--help-all"], "max_content_width": 88},
)
@click.version_option(package_name=PROGRAM, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Make every RMSNorm of an ONNX model one node, and prove it."""


cli.params += [*LOGGING, DEBUG]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program's name; ``sys.argv[1:]`` by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    state = State.of_arguments(arguments)
    stdout_is_closed = sys.stdout is None
    _fill_closed_streams()
    _escape_unencodable()
    if instruction := os.environ.get(_COMPLETE):  # the shell asks, without arguments
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, PROGRAM, _COMPLETE, instruction)
    if argv is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # to remove what is half written
        sympy_when_used()
    if not arguments:
        click.echo(cli.get_help(click.Context(cli, info_name=PROGRAM)), err=True)
        return int(ExitCode.USAGE)
    try:
        if stdout_is_closed:
            raise UsageError(
                "Standard output is closed.",
                found="what the command prints has nowhere to go",
                fix="send it to a file, or to /dev/null",
            )
        with cli.make_context(PROGRAM, arguments, obj=state) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return int(ExitCode.OK)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        pass
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):
            return failure.report(error, state)
    _discard_output()
    return int(ExitCode.BROKEN_PIPE)


def _fill_closed_streams() -> None:
    """Put the null device where a standard stream is closed: the next file would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor == number and name != "stdin":
                setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))


def _escape_unencodable() -> None:
    """Escape names that the terminal's encoding lacks, instead of ending the run."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not fail on it."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

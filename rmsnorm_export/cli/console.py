"""The streams of output: documents and models to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import Progress

STDIO = "-"
"""The path that stands for stdin or stdout."""


def log_to_stderr(state: State) -> None:
    """Send logs and warnings to stderr: errors only; with -v our own, with -vv everybody's."""
    import logging
    import warnings

    detailed = state.verbosity > 1 or state.debug
    level = logging.DEBUG if detailed else logging.INFO if state.verbosity > 0 else logging.ERROR
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if detailed else logging.ERROR,
        format="%(levelname)s: %(name)s: %(message)s",
        force=True,
    )
    logging.getLogger("rmsnorm_export").setLevel(level)
    if not detailed:
        warnings.simplefilter("ignore")


def is_styled(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows styles (see no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


@contextlib.contextmanager
def progress(state: State, message: str) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs, if somebody is there to see it.

    A spinner and the seconds beside it move while a step does.

    Yields:
        What to call with the work at hand, the steps that are over and the steps in all, which go
        to the log as well.
    """
    import logging

    logger = logging.getLogger(__name__)
    with contextlib.ExitStack() as ended:
        bar = None
        if state.verbosity == 0 and not state.debug and is_styled(sys.stderr):
            from rich.console import Console
            from rich.progress import Progress as Bar
            from rich.progress import SpinnerColumn, TimeElapsedColumn

            columns = SpinnerColumn(), *Bar.get_default_columns()[:-1], TimeElapsedColumn()
            made = Bar(*columns, console=Console(stderr=True), transient=True)
            bar = ended.enter_context(made)
            bar.add_task(message, total=None)

        def step(work: str, done: int, total: int) -> None:
            logger.info("%s (%d of %d done)", work, done, total)
            if bar is not None:
                task = bar.task_ids[0]
                bar.update(task, description=work, completed=done, total=total, refresh=True)

        yield step


def announce(state: State) -> Progress:
    """Return what says on stderr, in any case but with -q, what takes minutes before it begins."""
    return lambda work, *_: None if state.verbosity < 0 else click.echo(work, err=True)


_stdin: TextIO | None = None
"""Standard input, while commands find nothing in its place."""


def take_stdin() -> None:
    """Make standard input empty for all but ``read_stdin``: a library may ask there."""
    global _stdin
    _stdin, sys.stdin = sys.stdin, io.StringIO()


def read_stdin() -> bytes:
    """Read the model that is piped in.

    Raises:
        UsageError: stdin is a terminal, or closed.
        InputError: nothing was piped in.
    """
    if _stdin is None or _stdin.isatty():
        raise UsageError(
            "No model is piped into stdin.",
            found="stdin is closed" if _stdin is None else "stdin is a terminal",
            fix="give the path of a model, or pipe one in: cat model.onnx | rmsnorm-export ...",
        )
    data = _stdin.buffer.read()
    if not data:
        raise InputError("Stdin holds no model.", found="0 bytes", fix="pipe in a whole ONNX file")
    return data

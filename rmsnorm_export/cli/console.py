"""Where output goes: documents and models to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.system.progress import Progress, is_styled, terminal_bar

STDIO = "-"
"""The path that stands for stdin or stdout."""


@contextlib.contextmanager
def logging_to_stderr(state: State) -> Iterator[None]:
    """Logs and warnings on stderr while the block runs: errors only; -v ours, -vv everybody's."""
    import logging
    import warnings

    detailed = state.verbosity > 1 or state.debug
    root, ours = logging.getLogger(), logging.getLogger("rmsnorm_export")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    before = root.level, ours.level
    root.setLevel(logging.WARNING if detailed else logging.ERROR)
    ours.setLevel(
        logging.DEBUG if detailed else logging.INFO if state.verbosity > 0 else logging.ERROR
    )
    root.addHandler(handler)
    with warnings.catch_warnings():
        if not detailed:
            warnings.simplefilter("ignore")
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(before[0])
            ours.setLevel(before[1])


@contextlib.contextmanager
def progress(state: State, message: str, *, log: str = "") -> Iterator[Progress]:
    """A spinner on stderr while the block runs, if somebody is there to see it.

    Args:
        state: of the command line.
        message: to begin with.
        log: name of a logger that is told every step, too.

    Yields:
        What to call with the work at hand, the steps that are over and the steps in all: the
        spinner becomes a bar.
    """
    if state.verbosity != 0 or state.debug or not is_styled(sys.stderr):
        yield lambda what, done, total: _log(log, what, done, total)
        return
    with terminal_bar(message) as bar:

        def step(what: str, done: int, total: int) -> None:
            bar(what, done, total)
            _log(log, what, done, total)

        yield step


def _log(name: str, what: str, done: int, total: int) -> None:
    if name:
        import logging

        logging.getLogger(name).info("%s (%d of %d done)", what, done, total)


_stdin: TextIO | None = None
"""Standard input, while commands find none in its place."""


@contextlib.contextmanager
def nothing_to_ask() -> Iterator[None]:
    """Standard input is empty in the block for all but ``read_stdin``: a library may ask there."""
    global _stdin
    _stdin, before = sys.stdin, _stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin, _stdin = _stdin, before


def read_stdin() -> bytes:
    """The model that is piped in.

    Raises:
        UsageError: stdin is a terminal.
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


def source_name(argument: str, description: str) -> str:
    """How the model is called in a report; ``description`` is what the API calls it."""
    return "stdin" if argument == STDIO else description


def refuse_terminal() -> None:
    """Before work is done for ``-o -``: no binary model onto a terminal.

    Raises:
        UsageError: stdout is a terminal.
    """
    if sys.stdout.isatty():
        raise UsageError(
            "A model cannot be written to a terminal.",
            found="-o - and stdout is a terminal",
            fix="give -o PATH, or redirect stdout",
        )


def write_stdout(data: bytes) -> None:
    """A model onto stdout, all of it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

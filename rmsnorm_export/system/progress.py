"""Progress of work, and the bar that shows it on a terminal."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

Progress = Callable[[str, int, int], None]
"""Called with the work at hand, the steps that are over and the steps in all."""

ProgressChoice = Progress | Literal[False] | None
"""Called instead of the bar; False: nothing is; None: the bar."""

PROGRESS_HELP = (
    "Called with the work at hand, the steps that are over and the steps in all. None: a bar on a "
    "terminal; False: nothing."
)

_WATCHED = contextvars.ContextVar("_WATCHED", default=False)
"""Whether work around this one says how far it is, so that this one needs no bar of its own."""


def is_styled(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows styles (see no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


@contextlib.contextmanager
def shown_progress(choice: ProgressChoice) -> Iterator[Progress]:
    """Provide what work is to call while the block runs.

    A bar appears at the first call, so that work that is over at once shows none.
    """
    watched = _WATCHED.set(True)
    try:
        with contextlib.ExitStack() as stack:
            if choice is not None:
                yield choice or _silent
            elif watched.old_value is True or not is_styled(sys.stderr):
                yield _silent
            else:
                bar = functools.cache(lambda: stack.enter_context(terminal_bar("")))
                yield lambda *step: bar()(*step)
    finally:
        _WATCHED.reset(watched)


def shows_progress(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the keyword ``progress`` of a function what ``shown_progress`` makes of it."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with shown_progress(options.get("progress")) as options["progress"]:
            return function(*args, **options)

    return call


def _silent(what: str, done: int, total: int) -> None:
    """Say nothing of work that nobody watches."""


@contextlib.contextmanager
def terminal_bar(message: str) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(message, total=None)

        def step(what: str, done: int, total: int) -> None:
            text = what[:1].upper() + what[1:]
            bar.update(task, description=text, completed=done, total=total, refresh=True)

        yield step

"""How work says how far it is, and the bar that shows it where somebody is there to see it."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import html
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, ParamSpec, TextIO, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Called with the work at hand, the steps that are over and the steps in all."""

ProgressChoice = Progress | Literal[False] | None
"""What is called instead of the bar; False: nothing is; None: the bar."""

PROGRESS_HELP = (
    "Called with the work at hand, the steps that are over and the steps in all. None: a bar in "
    "notebooks and terminals, unless RMSNORM_EXPORT_PROGRESS=0 is set; False: nothing."
)


def is_styled(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows styles (see no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


_WATCHED = contextvars.ContextVar("_WATCHED", default=False)
"""Whether work around this one says how far it is, so that this one needs no bar of its own."""


@contextlib.contextmanager
def shown_progress(choice: ProgressChoice) -> Iterator[Progress]:
    """What work is to call while the block runs.

    A bar appears at the first call, so that work that is over at once shows none, and is gone at
    the end. Work within the block shows no other.
    """
    watched = _WATCHED.set(True)
    try:
        if choice is not None:
            yield choice or _silent
        elif watched.old_value is True or os.environ.get("RMSNORM_EXPORT_PROGRESS") == "0":
            yield _silent
        elif _in_notebook():
            with contextlib.closing(_NotebookBar()) as bar:
                yield bar.step
        elif is_styled(sys.stderr):
            with contextlib.ExitStack() as ended:
                bars: list[Progress] = []

                def step(what: str, done: int, total: int) -> None:
                    if not bars:
                        bars.append(ended.enter_context(terminal_bar(what)))
                    bars[0](what, done, total)

                yield step
        else:
            yield _silent
    finally:
        _WATCHED.reset(watched)


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose keyword ``progress`` is what ``shown_progress`` makes of it."""

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        choice: Any = given.get("progress")
        with shown_progress(choice) as tell:
            given["progress"] = tell
            return function(*args, **given)

    return call


def _silent(what: str, done: int, total: int) -> None:
    """For work that nobody watches."""


@contextlib.contextmanager
def terminal_bar(message: str) -> Iterator[Progress]:
    """A spinner on stderr while the block runs; told of steps, it becomes a bar."""
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(message, total=None, steps="")

        def step(what: str, done: int, total: int) -> None:
            text = what[:1].upper() + what[1:]
            steps = f"{done} of {total}"
            # Other work is drawn as it begins, for it may be over before the next drawing.
            new = text != bar.tasks[0].description
            bar.update(
                task, description=text, completed=done, total=total, steps=steps, refresh=new
            )

        yield step


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows HTML."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


class _NotebookBar:
    """A bar below the cell that runs, without widgets."""

    def __init__(self) -> None:
        self.handle: Any = None

    def step(self, what: str, done: int, total: int) -> None:
        text = html.escape(f"{what[:1].upper()}{what[1:]}: {done} of {total}")
        bar = f'<progress value="{done}" max="{max(1, total)}"></progress>'
        self._show(f"<label>{text} {bar}</label>")

    def close(self) -> None:
        if self.handle is not None:
            self._show("")

    def _show(self, markup: str) -> None:
        notebook: Any = importlib.import_module("IPython.display")
        if self.handle is None:
            self.handle = notebook.display(notebook.HTML(markup), display_id=True)
        else:
            self.handle.update(notebook.HTML(markup))

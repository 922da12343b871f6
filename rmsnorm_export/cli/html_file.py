"""``--html FILE``: the result as a page in a file, under the rules of ``--report``.

A command takes ``@option`` and a parameter ``html_path``, calls ``check`` before its work and
``write`` after it.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmsnorm_export.cli import report_file
from rmsnorm_export.cli.outcome import size_text

if TYPE_CHECKING:
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.rewrite.result import Report
    from rmsnorm_export.show.page import Section
    from rmsnorm_export.show.page.verification import Verified

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxruntime", "numpy")

option = click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to FILE as a page for a browser: complete in itself, no network.",
)
"""``--html FILE``, as the parameter ``html_path``."""


def force_option(function: F) -> F:
    """--force, for a command that writes nothing but the page."""
    help_ = "Replace an existing file of --html."
    return click.option("--force", is_flag=True, help=help_)(function)


def check(path: Path | None, *, force: bool, taken: Sequence[str | Path | None]) -> None:
    """Before work is done: ``path`` can be written and is nobody else's.

    Args:
        path: where the page will go; None: nowhere.
        force: an existing file may be replaced.
        taken: other paths of the command line, which the page must not replace.

    Raises:
        UsageError, InputError: as ``report_file.check``.
    """
    if path is not None:
        others = tuple(os.fspath(other) for other in taken if other is not None)
        report_file.check(path, force=force, taken=others, option="--html")


def write(
    path: Path | None,
    result: Report | Verified,
    *,
    force: bool,
    facts: Sequence[tuple[str, str]] = (),
    failure: Failure | None = None,
    planned: bool = False,
    compared: tuple[str, str] = ("", ""),
    sections: Sequence[Section] = (),
) -> None:
    """Write the page of ``result``, whole or not at all; does nothing when ``path`` is None.

    Args:
        path: where to.
        result: of ``optimize`` or ``inspect``, with drawings, or of ``verify``.
        force: an existing file may be replaced.
        facts: more lines for the summary, e.g. what was written.
        failure: what the command will end with.
        planned, compared, sections: as for ``to_html``.
    """
    if path is None:
        return
    from rmsnorm_export.show.page import About, to_html
    from rmsnorm_export.system.packages import versions_of

    about = About(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        versions=tuple(versions_of(_PACKAGES).items()),
        facts=tuple(facts),
        problem=None if failure is None else (failure.what, failure.found, failure.fix),
    )
    text = to_html(result, about=about, planned=planned, compared=compared, sections=sections)
    report_file.write(path, text, force=force)


def file_size(path: str) -> list[tuple[str, str]]:
    """A fact for the summary: how large a model file is, its external weights apart."""
    try:
        return [("Model file", size_text(os.path.getsize(path)))]
    except (OSError, ValueError):
        return []

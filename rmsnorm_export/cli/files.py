"""The files that a command writes beside its output: ``--report``, ``--html``, ``--png``.

A command checks them before its work, for they must not replace a model or each other, and writes
each whole or not at all.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from rmsnorm_export.cli.options import F
from rmsnorm_export.errors import Error, InputError, UsageError

_PAGE_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxruntime", "numpy")


def file_option(flag: str, help_: str) -> Callable[[F], F]:
    """A flag for a file to write, as the parameter ``<flag>_path``."""
    name = f"{flag.removeprefix('--')}_path"
    return click.option(flag, name, type=click.Path(path_type=Path), metavar="FILE", help=help_)


html_option = file_option(
    "--html", "Write the report to FILE as a page for a browser: complete in itself, no network."
)
report_option = file_option(
    "--report", "Write the report to FILE too: as JSON if it ends in .json, else as text."
)


def force_option(help_: str) -> Callable[[F], F]:
    """--force; the sentence says what it replaces."""
    return click.option("--force", is_flag=True, help=help_)


def check_files(
    files: Mapping[str, Path | None], *, force: bool, taken: Sequence[str | Path | None]
) -> None:
    """Before work is done: each file can be written and is nobody else's.

    Args:
        files: flag -> where it will go; None: nowhere.
        force: existing files may be replaced.
        taken: other paths of the command line, which no file must replace.

    Raises:
        UsageError: a path is ``-``, one of ``taken``, that of another file, or exists without
            ``force``.
        InputError: its folder is missing, or it is a folder.
    """
    others = [os.fspath(other) for other in taken if other is not None]
    for flag, path in files.items():
        if path is not None:
            _check_file(path, flag, others, force)
            others.append(os.fspath(path))


def _check_file(path: Path, flag: str, taken: Sequence[str], force: bool) -> None:
    if str(path) == "-":
        raise UsageError(
            f"{flag} needs a file.",
            found=f"{flag} -",
            fix=f"leave {flag} away: the report is on stdout, or on stderr with -o -",
        )
    for other in taken:
        if other != "-" and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"{flag} would overwrite a model or another report.",
                found=str(path),
                fix="give it another name",
            )
    problem = ""
    if not path.parent.is_dir():
        problem, fix = f"no folder {path.parent}", f"create it: mkdir -p {path.parent}"
    elif path.is_dir():
        problem, fix = f"{path} is a folder", "give a file name"
    if problem:
        raise InputError("The report cannot be written.", found=problem, fix=fix)
    if path.is_file() and not force:
        raise UsageError(
            "The report would overwrite a file.",
            found=f"{path} exists",
            fix="give another name, or --force to replace it",
        )


def write_file(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write ``content`` to ``path``, text as UTF-8, whole or not at all.

    What is no plain file (``/dev/null``, a named pipe) is written to as it is.
    """
    from rmsnorm_export.system.files import write_whole

    write_whole(path, content, replace=force)


def write_page(
    path: Path | None,
    result: object,
    *,
    force: bool,
    facts: Sequence[tuple[str, str]] = (),
    error: Error | None = None,
    **options: object,
) -> None:
    """Write the page of ``result``; does nothing when ``path`` is None.

    Args:
        path: where to.
        result: of a command; of ``optimize`` or ``inspect`` with drawings.
        force: an existing file may be replaced.
        facts: more lines for the summary, e.g. what was written.
        error: what the command will end with.
        options: as for ``show.to_html``.
    """
    if path is None:
        return
    from rmsnorm_export.cli.failure import explain
    from rmsnorm_export.show import to_html
    from rmsnorm_export.show.page.document import About
    from rmsnorm_export.system.packages import versions_of

    failure = None if error is None else explain(error)
    about = About(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        versions=tuple(versions_of(_PAGE_PACKAGES).items()),
        facts=tuple(facts),
        problem=None if failure is None else (failure.what, failure.found, failure.fix),
    )
    write_file(path, to_html(result, about=about, **options), force=force)


def file_size(path: str) -> list[tuple[str, str]]:
    """A fact for the summary: how large a model file is, its external weights apart."""
    try:
        return [("Model file", size_text(os.path.getsize(path)))]
    except (OSError, ValueError):
        return []


def size_text(count: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
